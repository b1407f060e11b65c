# cmake "-DFILES=a.spv;b.spv" -DOUTPUT=... -P EmbedShaders.cmake: writes SPIR-V modules as C++
# (device/vulkan/shader_code.h).
set(arrays "")
set(entries "")
set(number 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} content HEX)
  # Little-endian words.
  string(REGEX REPLACE "(..)(..)(..)(..)" "0x\\4\\3\\2\\1," content "${content}")
  string(REGEX REPLACE "(...........)(...........)(...........)(...........)(...........)(...........)(...........)(...........)" "\\1\\2\\3\\4\\5\\6\\7\\8\n" content "${content}")
  string(APPEND arrays "constexpr uint32_t kModule${number}[] = {\n${content}};\n")
  string(APPEND entries "    {\"${name}\", kModule${number}},\n")
  math(EXPR number "${number} + 1")
endforeach()
file(WRITE ${OUTPUT} "#include \"device/vulkan/shader_code.h\"

namespace deltafin {
namespace {

${arrays}
const ShaderCode kModules[] = {
${entries}};

}  // namespace

std::span<const ShaderCode> ShaderModules() { return kModules; }

}  // namespace deltafin
")
