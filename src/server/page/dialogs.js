// Settings, "really delete?", and files to keep.
import { byId, element } from "./dom.js";

/** Fields change `settings` when the dialog closes; then `onChange()`. Returns what opens it. */
export function createSettingsDialog(settings, onChange) {
  const dialog = byId("settings");
  const fields = {
    system: byId("set-system"),
    temperature: byId("set-temperature"),
    maxTokens: byId("set-max-tokens"),
    apiKey: byId("set-api-key"),
    theme: byId("set-theme"),
  };
  dialog.addEventListener("close", () => {
    for (const [name, field] of Object.entries(fields)) {
      // A number out of range counts as none.
      settings[name] = field.validity.valid ? field.value : "";
    }
    onChange();
  });
  byId("settings-form").noValidate = true;
  byId("settings-form").addEventListener("submit", (event) => {
    event.preventDefault();
    dialog.close();
  });
  closeOnOutside(dialog);
  return () => {
    for (const [name, field] of Object.entries(fields)) field.value = settings[name];
    dialog.showModal();
  };
}

export function askToDelete(question) {
  const dialog = byId("confirm");
  byId("confirm-text").textContent = question;
  dialog.showModal();
  byId("confirm-no").focus();
  return new Promise((resolve) => {
    const answer = (value) => {
      byId("confirm-yes").onclick = byId("confirm-no").onclick = dialog.onclose = null;
      if (dialog.open) dialog.close();
      resolve(value);
    };
    byId("confirm-yes").onclick = () => answer(true);
    byId("confirm-no").onclick = () => answer(false);
    dialog.onclose = () => answer(false);
  });
}

function closeOnOutside(dialog) {
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
}

export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const safe = name.replace(/[^\p{L}\p{N} ._-]/gu, "").trim() || "conversation.json";
  element("a", { href: url, download: safe }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
