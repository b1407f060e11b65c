// Where the activations of a row are when they are laid out (lane_layout.h), not for MXFP4.
uint Padded(uint cols) { return (cols + 127u) & ~127u; }
uint PlaceOf(uint col) { return (col & ~127u) + (col % 16u) * 8u + col / 16u % 8u; }
