//! The sections of a file, and what stands in them.
//!
//! The caller feeds bytes and asks for the next step, by turns. Nothing is read ahead of the statement at
//! hand, and what a step lends ends with the next call. The invariant: after an error each further call gives
//! the same one, and after the end it is the end.

use std::ops::Range;

use crate::error::{Fault, ParseError};
use crate::limits::Limits;
use crate::parse::{Statement, first, parse};
use crate::statements::{Found, Statements, lines};
use crate::value::{Instance, Record};

/// Reads a file that arrives in pieces.
#[derive(Debug)]
pub struct Decoder {
    statements: Statements,
    limits: Limits,
    section: Section,
    instances: u64,
    has_data: bool,
    error: Option<ParseError>,
}

/// The next thing in a file.
#[derive(Debug, PartialEq)]
pub enum Step<'a> {
    /// Feed more bytes, or say that there are none.
    More,
    /// A record of the header, such as `FILE_SCHEMA`.
    Header(Record<'a>),
    /// A data section begins; its parameters, where the file has several and names them.
    Data(Vec<crate::Value<'a>>),
    /// An instance of a data section.
    Instance(Instance<'a>),
    /// The file has ended as it should.
    End,
}

/// The part of a file in which the next statement stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Section {
    /// Before `ISO-10303-21`.
    Start,
    /// Between two sections; set behind the header.
    Between(bool),
    Header,
    Data,
    /// After `END-ISO-10303-21`.
    Ended,
}

impl Default for Decoder {
    fn default() -> Decoder {
        Decoder::new(Limits::default())
    }
}

impl Decoder {
    /// A decoder at the beginning of a file.
    pub fn new(limits: Limits) -> Decoder {
        Decoder {
            statements: Statements::new(),
            limits,
            section: Section::Start,
            instances: 0,
            has_data: false,
            error: None,
        }
    }

    /// Takes the next bytes of the file.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.statements.feed(bytes);
    }

    /// Takes note that the file has no more bytes.
    pub fn end(&mut self) {
        self.statements.end();
    }

    /// Reads the next statement, if it has arrived.
    ///
    /// # Errors
    /// If the file breaks the form or a bound. Then nothing that follows can be read.
    pub fn step(&mut self) -> Result<Step<'_>, ParseError> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        let (range, line) = loop {
            let (range, line) = match self.statements.next() {
                Found::More if self.statements.pending_bytes() <= self.limits.statement_bytes_max => {
                    return Ok(Step::More);
                }
                Found::More => return Err(self.too_long()),
                Found::Statement(range, _) | Found::Rest(range, _)
                    if range.len() > self.limits.statement_bytes_max =>
                {
                    return Err(self.too_long());
                }
                Found::Rest(range, line) => return self.finish(range, line),
                Found::Statement(range, line) => (range, line),
            };
            let bytes = self.statements.bytes(range.clone());
            if bytes.get(first(bytes)) == Some(&b'#') {
                break (range, line);
            }
            match enter(self.section, bytes, &self.limits, self.has_data) {
                Ok((section, is_told)) => {
                    self.section = section;
                    self.has_data |= section == Section::Data;
                    if is_told {
                        break (range, line);
                    }
                }
                Err(fault) => return Err(self.refuse(range, line, fault)),
            }
        };
        let bytes = self.statements.bytes(range);
        match told(self.section, bytes, line, &self.limits, &mut self.instances) {
            Ok(step) => Ok(step),
            Err(fault) => {
                let error = located(bytes, line, fault);
                self.error = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Judges the end of the input.
    fn finish(&mut self, range: Range<usize>, line: u64) -> Result<Step<'_>, ParseError> {
        let bytes = self.statements.bytes(range.clone());
        let at = first(bytes);
        match (self.section, at == bytes.len()) {
            (Section::Ended, true) => Ok(Step::End),
            (Section::Start, true) => Err(self.refuse(range, line, Fault::new(at, "the file is empty"))),
            (_, true) => {
                let reason = "the file ends without `END-ISO-10303-21;`: it was cut short";
                Err(self.refuse(range, line, Fault::new(at, reason)))
            }
            (_, false) => {
                let fault = Fault::new(
                    at,
                    "the file ends within a statement, a string or a comment: it was cut short",
                );
                Err(self.refuse(range, line, fault))
            }
        }
    }

    #[cold]
    fn refuse(&mut self, range: Range<usize>, line: u64, fault: Fault) -> ParseError {
        let error = located(self.statements.bytes(range), line, fault);
        self.error = Some(error.clone());
        error
    }

    #[cold]
    fn too_long(&mut self) -> ParseError {
        let reason =
            format!("a statement or comment is longer than {} bytes", self.limits.statement_bytes_max);
        self.refuse(0..0, self.statements.line(), Fault::new(0, reason))
    }
}

/// The error of a fault in a statement that begins on `line`.
fn located(bytes: &[u8], line: u64, fault: Fault) -> ParseError {
    ParseError { line: line + lines(&bytes[..fault.at.min(bytes.len())]), reason: fault.reason }
}

/// Reads a statement that begins with a keyword: the section after it, and whether the caller is told of it.
fn enter(section: Section, bytes: &[u8], limits: &Limits, has_data: bool) -> Result<(Section, bool), Fault> {
    let fault = |reason: String| Err(Fault::new(first(bytes), reason));
    let statement = parse(bytes, limits)?;
    let keyword = match &statement {
        Statement::Nothing => return Ok((section, false)),
        Statement::Word(keyword) | Statement::Record(Record { keyword, .. }) => *keyword,
        Statement::Instance(..) => return Ok((section, true)),
    };
    let is_word = matches!(statement, Statement::Word(_));
    match (section, keyword) {
        (Section::Start, "ISO-10303-21") if is_word => Ok((Section::Between(false), false)),
        (Section::Start, _) => {
            fault("the file does not begin with `ISO-10303-21;`: it is no STEP file".into())
        }
        (Section::Between(false), "HEADER") if is_word => Ok((Section::Header, false)),
        (Section::Between(false), _) => fault(format!("found {keyword}, expected the section HEADER")),
        (Section::Between(true), "DATA") => Ok((Section::Data, true)),
        (Section::Between(true), "END-ISO-10303-21") if is_word && has_data => Ok((Section::Ended, false)),
        (Section::Between(true), "END-ISO-10303-21") => fault("the file has no section DATA".into()),
        (Section::Between(true), "ANCHOR" | "REFERENCE" | "SIGNATURE") => {
            fault(format!("the section {keyword}, of the third edition, is not read"))
        }
        (Section::Between(true), _) => fault(format!("found {keyword}, expected a section DATA or the end")),
        (Section::Header | Section::Data, "ENDSEC") if is_word => Ok((Section::Between(true), false)),
        (Section::Header, _) if !is_word => Ok((Section::Header, true)),
        (Section::Header, _) => fault(format!("found {keyword} without parameters in the header")),
        (Section::Data, _) => fault(format!("found {keyword}, expected an instance or ENDSEC")),
        (Section::Ended, _) => fault(format!("found {keyword} behind the end of the file")),
    }
}

/// The step of a statement that the caller is told of.
fn told<'a>(
    section: Section,
    bytes: &'a [u8],
    line: u64,
    limits: &Limits,
    instances: &mut u64,
) -> Result<Step<'a>, Fault> {
    match (parse(bytes, limits)?, section) {
        (Statement::Instance(id, body), Section::Data) => {
            if *instances == limits.instances_max {
                return Err(Fault::new(
                    first(bytes),
                    format!("the file has more than {instances} instances"),
                ));
            }
            *instances += 1;
            let at = first(bytes);
            Ok(Step::Instance(Instance { id, line: line + lines(&bytes[..at]), body }))
        }
        (Statement::Instance(..), _) => {
            Err(Fault::new(first(bytes), "an instance stands outside of the sections DATA"))
        }
        (Statement::Record(record), Section::Header) => Ok(Step::Header(record)),
        (Statement::Record(record), _) => Ok(Step::Data(record.parameters)),
        (Statement::Word(_) | Statement::Nothing, _) => Ok(Step::Data(Vec::new())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "ISO-10303-21;\nHEADER;/* a; */\r\nFILE_SCHEMA(('X'));\rENDSEC;\nDATA;\n#1=A(#2);\n#2=B();\nENDSEC;\n\
        DATA('two',('X'));#3=A($);ENDSEC;\nEND-ISO-10303-21;\n";

    fn read(text: &[u8], bytes: usize, limits: Limits) -> Result<Vec<String>, ParseError> {
        let mut decoder = Decoder::new(limits);
        let mut pieces = text.chunks(bytes);
        let mut steps = Vec::new();
        loop {
            match decoder.step()? {
                Step::More => match pieces.next() {
                    Some(piece) => decoder.feed(piece),
                    None => decoder.end(),
                },
                Step::End => return Ok(steps),
                step => steps.push(format!("{step:?}")),
            }
        }
    }

    fn refusal(text: &str) -> String {
        read(text.as_bytes(), 5, Limits::default()).expect_err(text).to_string()
    }

    #[test]
    fn sections_are_told_in_order_however_they_arrive() {
        let whole = read(SMALL.as_bytes(), 1 << 20, Limits::default()).unwrap();
        let kinds: Vec<_> = whole.iter().map(|step| step.split(['(', ' ', '{']).next().unwrap()).collect();
        assert_eq!(kinds, ["Header", "Data", "Instance", "Instance", "Data", "Instance"]);
        assert!(whole[3].contains("id: 2, line: 7"), "{}", whole[3]);
        for bytes in 1..40 {
            assert_eq!(
                read(SMALL.as_bytes(), bytes, Limits::default()),
                Ok(whole.clone()),
                "in pieces of {bytes}"
            );
        }
    }

    #[test]
    fn every_cut_is_noticed() {
        let end = SMALL.trim_end().len();
        for to in 0..end {
            assert!(read(&SMALL.as_bytes()[..to], 7, Limits::default()).is_err(), "{to}");
        }
        assert!(read(&SMALL.as_bytes()[..end], 7, Limits::default()).is_ok());
    }

    #[test]
    fn misplaced_tokens_are_told_with_their_line() {
        let odd = [
            ("", "line 1: the file is empty"),
            ("solid box\nendsolid;", "line 1: "),
            ("<html>;", "line 1: "),
            ("ISO-10303-21;\nDATA;", "line 2: found DATA, expected the section HEADER"),
            ("ISO-10303-21;HEADER;\n#1=A();", "line 2: an instance stands outside"),
            ("ISO-10303-21;HEADER;ENDSEC;\rEND-ISO-10303-21;", "line 2: the file has no section DATA"),
            ("ISO-10303-21;HEADER;ENDSEC;\r\n\r\nANCHOR;", "line 3: the section ANCHOR"),
            ("ISO-10303-21;HEADER;ENDSEC;DATA;\n\nA();", "line 3: found A, expected an instance"),
            ("ISO-10303-21;HEADER;ENDSEC;DATA;#1=A(\n\n'x\\y');", "line 3: a backslash"),
            ("ISO-10303-21;HEADER;ENDSEC;DATA;\n/* no end", "line 2: the file ends within"),
        ];
        for (text, said) in odd {
            assert!(refusal(text).starts_with(said), "{text:?}: {}", refusal(text));
        }
        assert!(refusal(&format!("{SMALL}\nDATA;")).starts_with("line 12: found DATA behind the end"));
    }

    #[test]
    fn an_error_stays() {
        let mut decoder = Decoder::default();
        decoder.feed(b"ISO-10303-21;HEADER;ENDSEC;DATA;x;#1=A();");
        while decoder.step().is_ok() {}
        let first = decoder.step().unwrap_err();
        decoder.feed(b"#2=A();ENDSEC;END-ISO-10303-21;");
        assert_eq!(decoder.step().unwrap_err(), first);
    }

    #[test]
    fn statements_and_instances_are_bounded() {
        let of = |limits| read(SMALL.as_bytes(), 4, limits).unwrap_err().reason;
        let bytes = Limits { statement_bytes_max: 18, ..Limits::default() };
        assert_eq!(of(bytes), "a statement or comment is longer than 18 bytes");
        let instances = Limits { instances_max: 2, ..Limits::default() };
        assert_eq!(of(instances), "the file has more than 2 instances");
        let enough = Limits { statement_bytes_max: 64, instances_max: 3, ..Limits::default() };
        assert!(read(SMALL.as_bytes(), 4, enough).is_ok());
    }
}
