//! Models of STEP files as objects: what `tercel import step`, `query step` and `bench cad` share.
//!
//! | module | its noun |
//! |---|---|
//! | [`model`] | the classes and the root |
//! | [`values`] | the parameters of an instance as bytes |
//! | [`source`] | the files of an import |
//! | [`draft`] | a file that was read |
//! | [`import`] | files that become objects |
//! | [`query`] | look-ups, closures and bounds over them |
//! | [`product`] | products and their parts |
//! | [`sample`] | a model that the program writes itself |

pub mod draft;
pub mod import;
pub mod model;
pub mod product;
pub mod query;
pub mod sample;
pub mod source;
pub mod values;
