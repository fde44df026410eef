//! The targets of the fuzzer: one module each, with a `run` that takes bytes and panics if something is wrong.
//!
//! The targets live in a library so that the corpora beside it can be replayed without a fuzzer, by `cargo test`: a
//! finding, once mended, stays in the corpus and is a test from then on.
//!
//! | module | what must hold |
//! |---|---|
//! | [`frame`] | any stream is cut or refused; any body that can be read is written back as it was read |
//! | [`record`] | a record that passes the check can be used and converted; one that does not does no harm |
//! | [`page`] | what passes the check is whole, and makes the same page when it is made again |
//! | [`log`] | of a damaged log comes only what was written, and never less than a sync confirmed unless it says so |
//! | [`catalogue`] | any class is judged, kept and compared |
//! | [`recovery`] | any log and any stored state are replayed or refused |
//! | [`datagram`] | packets are written back as they were read; neither end of a connection minds any |
//! | [`group`] | packets, lists of members and files of votes are written back as they were read |
//! | [`ring`] | packets are written back as they were read; a member of a ring minds none |
//! | [`keys`] | keys of maps are read as they were written or refused, and in order |
//! | [`packages`] | any text is read or refused, however it arrives |
//! | [`papers`] | certificates and tokens are read or refused; changed handshakes and records let nobody in |
//! | [`step`] | any text is read or refused, however it arrives; what was read is written and read again |
//! | [`versions`] | descriptions of other builds: what is converted for them is whole and says the same |
//! | [`server`] | a server survives whatever is said to it |
//! | [`script`] | whatever clients do and whatever befalls them, transactions are serializable and durable |

pub mod catalogue;
pub mod datagram;
pub mod frame;
pub mod group;
pub mod keys;
pub mod log;
pub mod packages;
pub mod page;
pub mod papers;
pub mod record;
pub mod recovery;
pub mod ring;
pub mod script;
pub mod server;
pub mod shapes;
pub mod step;
pub mod versions;
