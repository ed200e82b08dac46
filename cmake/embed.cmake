# rudder_embed(face /abs/a.css /abs/b.js)
# Files as read-only data of the target that compiles face.S, made in the binary folder. face_files.inc
# there has a line RUDDER_EMBEDDED_FILE("a.css", symbol) a file; the bytes are [symbol, symbol_end).
function(rudder_embed name)
  set(assembly "/* The files of rudder_embed(${name}). */\n    .section .rodata\n")
  set(table "")
  foreach(path ${ARGN})
    get_filename_component(file ${path} NAME)
    string(MAKE_C_IDENTIFIER "rudder_${name}_${file}" symbol)
    string(APPEND assembly
      "    .balign 64\n    .globl ${symbol}\n${symbol}:\n    .incbin \"${path}\"\n"
      "    .globl ${symbol}_end\n${symbol}_end:\n    .byte 0\n")
    string(APPEND table "RUDDER_EMBEDDED_FILE(\"${file}\", ${symbol})\n")
  endforeach()
  string(APPEND assembly "    .section .note.GNU-stack,\"\",@progbits\n")
  file(CONFIGURE OUTPUT ${name}.S CONTENT "${assembly}" @ONLY)
  file(CONFIGURE OUTPUT ${name}_files.inc CONTENT "${table}" @ONLY)
  set_source_files_properties(${CMAKE_CURRENT_BINARY_DIR}/${name}.S PROPERTIES OBJECT_DEPENDS "${ARGN}")
endfunction()
