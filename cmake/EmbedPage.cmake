# cmake -DFOLDER=... -DOUTPUT=... -P EmbedPage.cmake: writes the files of a folder as C++
# (server/page_files.h).
set(type_html "text/html; charset=utf-8")
set(type_css "text/css; charset=utf-8")
set(type_js "text/javascript; charset=utf-8")
set(type_txt "text/plain; charset=utf-8")
set(type_svg "image/svg+xml")
set(type_png "image/png")
set(type_ico "image/vnd.microsoft.icon")
set(type_woff2 "font/woff2")
set(type_webmanifest "application/manifest+json")

file(GLOB names RELATIVE ${FOLDER} ${FOLDER}/*)
list(SORT names)
set(arrays "")
set(entries "")
set(number 0)
foreach(name ${names})
  string(REGEX REPLACE "^.*\\." "" extension ${name})
  set(type "${type_${extension}}")
  if(NOT type)
    message(FATAL_ERROR "EmbedPage: ${name}: no content type is known for .${extension}")
  endif()
  file(READ ${FOLDER}/${name} content HEX)
  file(SHA256 ${FOLDER}/${name} hash)
  string(SUBSTRING ${hash} 0 16 tag)
  string(LENGTH "${content}" digits)
  math(EXPR size "${digits} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," content "${content}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n" content "${content}")
  string(APPEND arrays "constexpr unsigned char kFile${number}[] = {${content}0};\n")
  string(APPEND entries "    {\"${name}\", \"${type}\", \"\\\"${tag}\\\"\", {reinterpret_cast<const char*>(kFile${number}), ${size}}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"server/page_files.h\"

namespace deltafin {
namespace {

${arrays}
const PageFile kFiles[] = {
${entries}};

}  // namespace

std::span<const PageFile> PageFiles() { return kFiles; }

}  // namespace deltafin
")
