//! The bounds of what is read.

/// The bounds of a [`Decoder`](crate::Decoder).
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a statement, comments before and inside of it counted. The largest
    /// statements of real files are shells with a reference for each face, some hundred kilobytes.
    pub statement_bytes_max: usize,
    /// Bytes of a string, number, keyword or other token.
    pub token_bytes_max: usize,
    /// Lists and typed parameters inside of each other. Surfaces have lists of lists, so three are common; a
    /// level costs a call of the parser's stack.
    pub depth_max: usize,
    /// Values of a statement, those in lists counted: with some 32 bytes each they are most of the memory
    /// of a decoder.
    pub values_max: usize,
    /// Instances of a file.
    pub instances_max: u64,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            statement_bytes_max: 64 << 20,
            token_bytes_max: 1 << 20,
            depth_max: 32,
            values_max: 4 << 20,
            instances_max: 1 << 23,
        }
    }
}
