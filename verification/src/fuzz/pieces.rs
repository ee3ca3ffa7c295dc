//! Splits of an input.

/// The input in pieces whose sizes depend on the seed: all at once, byte by byte, or neither.
pub(super) fn cut(data: &[u8], seed: u8) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    let mut rest = data;
    let mut state = u32::from(seed).wrapping_mul(0x9e37_79b9) | 1;
    while !rest.is_empty() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let size = 1 + (state >> 24) as usize % (1 + usize::from(seed) % 40);
        let (piece, after) = rest.split_at(size.min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces
}

/// All at once, byte by byte, and split according to the seed.
pub(super) fn all_cuts(data: &[u8], seed: u8) -> [Vec<&[u8]>; 3] {
    [vec![data], data.chunks(1).collect(), cut(data, seed)]
}

/// The first byte, which controls how an input is used, and the rest of it.
pub(super) fn controlled(data: &[u8]) -> Option<(u8, &[u8])> {
    data.split_first().map(|(control, rest)| (*control, rest))
}
