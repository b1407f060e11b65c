// A product y = W x as the host tells of it (gpu.h).
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Words { uvec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) readonly buffer Bits { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Quads { vec4 at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) writeonly buffer Results {
  uint at[];
};

struct Product {
  Words weights;
  Bits scales;   // int8: of each row
  Quads x;       // rows, laid out (lay_out.comp)
  Bits plain_x;  // as they were
  Bits quanta;   // of each row of x: all its values are multiples of 2^(this)
  Results y;     // rows, y_stride apart
  Bits in_rows;  // of x, if `lists` has bit 0; else 0, 1, 2, ...
  Bits out_rows;  // of y, if it has bit 1
  uint rows;
  uint cols;
  uint n;
  uint y_stride;
  int least;  // the quantum from which on product.comp is right; exact_product.comp has the others
  uint lists;
};
layout(buffer_reference, std430, buffer_reference_align = 8) readonly buffer Products {
  Product at[];
};
layout(push_constant, std430) uniform Job {
  Product only;
  Products table;  // of several products with the same format, rows and cols
  uint in_table;
};

Product TheProduct() {
  if (in_table != 0u) return table.at[gl_WorkGroupID.z];
  return only;
}
uint InRow(Product product, uint p) {
  return (product.lists & 1u) == 0u ? p : product.in_rows.at[p];
}
uint OutRow(Product product, uint p) {
  return (product.lists & 2u) == 0u ? p : product.out_rows.at[p];
}
