// Numbers for people.

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 999.5 && unit + 1 < units.length) {
    value /= 1000;
    unit++;
  }
  return `${unit === 0 ? Math.round(value) : significant(value)} ${units[unit]}`;
}

/** Three digits: 0.52, 5.2, 52.1, 521. */
export function significant(value) {
  if (value >= 100) return value.toFixed(0);
  if (value >= 10) return value.toFixed(1);
  return value >= 1 || value === 0 ? value.toFixed(1) : value.toFixed(2);
}

export function seconds(value) {
  if (value > 0 && value < 0.00995) return `${(value * 1000).toFixed(1)} ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value < 10 ? value.toFixed(1) : Math.round(value)} s`;
  if (value < 3600) return `${Math.floor(value / 60)} min ${Math.round(value % 60)} s`;
  return `${Math.floor(value / 3600)} h ${Math.round((value % 3600) / 60)} min`;
}

export function percent(value) {
  const hundred = value * 100;
  return `${hundred > 0 && hundred < 10 ? hundred.toFixed(1) : Math.round(hundred)} %`;
}

export function count(value, one, many = `${one}s`) {
  return `${value.toLocaleString("en")} ${value === 1 ? one : many}`;
}

export function day(time) {
  const days = Math.floor(startOfDay(Date.now()) - startOfDay(time)) / 86_400_000;
  if (days < 0.5) return "Today";
  if (days < 1.5) return "Yesterday";
  if (days < 7.5) return "Last 7 days";
  return new Date(time).toLocaleDateString("en", { month: "long", year: "numeric" });
}

function startOfDay(time) {
  return new Date(time).setHours(0, 0, 0, 0);
}
