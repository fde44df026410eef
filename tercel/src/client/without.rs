//! Parts of the shorter way of a call that can be switched off one by one, so that `tercel bench rpc` can say what each brings.

/// What the calls of a client do without. Each of them gives the same answers and takes longer; no program but a measurement has a use for
/// that.
#[doc(hidden)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Without {
    /// No call goes in a line of shared memory: each is a message of the stream.
    pub line: bool,
    /// The head of a request by a line is made anew for each call, and encoded as that of a message is.
    pub template: bool,
    /// What a call by a line takes is encoded as a record with parts beside it, also where its type says that it has numbers alone.
    pub schema: bool,
    /// What is large is written into a buffer first, and copied from there into the block that the server reads.
    pub in_place: bool,
}
