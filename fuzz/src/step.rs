//! Exchange files of ISO 10303-21, as `tercel import step` reads them.

use tercel_step::{Body, Decoder, Limits, Step, write_file, write_instance};

/// Instances as text, one a line, and the error at which reading ended.
type Said = (Vec<String>, Option<String>);

/// Reads the bytes as a file, whole and in small pieces. Both readings must agree, and instances that were
/// read are read again as they are written.
pub fn run(data: &[u8]) {
    let whole = read(data, data.len().max(1));
    assert_eq!(read(data, 7), whole, "it depends on how the text arrives");
    let again = write_file("again", "X", &whole.0.concat());
    let (instances, error) = read(again.as_bytes(), 1 << 10);
    assert_eq!(error, None, "what was written is refused");
    assert_eq!(instances, whole.0, "what was written is read otherwise");
}

fn read(data: &[u8], bytes: usize) -> Said {
    // A statement as large as the input is not refused, so that pieces do not decide.
    let mut decoder = Decoder::new(Limits { statement_bytes_max: 1 << 20, ..Limits::default() });
    let mut pieces = data.chunks(bytes);
    let mut instances = Vec::new();
    loop {
        match decoder.step() {
            Ok(Step::More) => match pieces.next() {
                Some(piece) => decoder.feed(piece),
                None => decoder.end(),
            },
            Ok(Step::Instance(instance)) => {
                assert!(matches!(&instance.body, Body::Simple(_)) || !instance.body.records().is_empty());
                let mut text = String::new();
                write_instance(instance.id, &instance.body, &mut text);
                instances.push(text);
            }
            Ok(Step::Header(_) | Step::Data(_)) => {}
            Ok(Step::End) => {
                assert!(matches!(decoder.step(), Ok(Step::End)), "the end is the end");
                return (instances, None);
            }
            Err(error) => {
                assert_eq!(decoder.step().as_ref(), Err(&error), "an error stays");
                return (instances, Some(error.to_string()));
            }
        }
    }
}
