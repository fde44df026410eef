//! The values of a statement.
//!
//! A statement is at hand as a whole, without its semicolon. The parser goes down as deep as
//! [`Limits::depth_max`] says and no further, so any bytes need a bounded stack.

use crate::error::Fault;
use crate::limits::Limits;
use crate::text;
use crate::value::{Body, Record, Value};

/// A statement of a section, by its first bytes.
#[derive(Debug, PartialEq)]
pub(crate) enum Statement<'a> {
    /// A keyword alone, such as `ENDSEC`.
    Word(&'a str),
    /// A record of the header, or of the head of a section.
    Record(Record<'a>),
    /// `#12 = ..`.
    Instance(u64, Body<'a>),
    /// Blanks and comments.
    Nothing,
}

/// Reads a statement.
pub(crate) fn parse<'a>(bytes: &'a [u8], limits: &Limits) -> Result<Statement<'a>, Fault> {
    let mut parser = Parser { bytes, at: 0, limits, values: 0 };
    parser.blank()?;
    let statement = match parser.peek() {
        None => return Ok(Statement::Nothing),
        Some(b'#') => {
            let id = parser.reference()?;
            parser.expect(b'=', "an instance")?;
            parser.blank()?;
            Statement::Instance(id, parser.body()?)
        }
        Some(_) => {
            let keyword = parser.keyword("a section's statement", true)?;
            parser.blank()?;
            match parser.peek() {
                None => Statement::Word(keyword),
                Some(_) => Statement::Record(Record { keyword, parameters: parser.parameters(0)? }),
            }
        }
    };
    parser.blank()?;
    match parser.peek() {
        None => Ok(statement),
        Some(_) => Err(parser.unexpected("the end of the statement")),
    }
}

/// Where the first byte stands that is no blank and in no comment; the length if all are.
pub(crate) fn first(bytes: &[u8]) -> usize {
    let mut parser = Parser { bytes, at: 0, limits: &Limits::default(), values: 0 };
    // A comment without an end is told by the one who reads the statement.
    let _ = parser.blank();
    parser.at
}

struct Parser<'a, 'l> {
    bytes: &'a [u8],
    at: usize,
    limits: &'l Limits,
    /// Values so far.
    values: usize,
}

impl<'a> Parser<'a, '_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    /// Goes past blanks, line ends and comments.
    fn blank(&mut self) -> Result<(), Fault> {
        loop {
            match &self.bytes[self.at..] {
                [b' ' | b'\t' | b'\n' | b'\r' | b'\x0c' | b'\x0b', ..] => self.at += 1,
                [b'/', b'*', comment @ ..] => match comment.windows(2).position(|two| two == b"*/") {
                    Some(bytes) => self.at += bytes + 4,
                    None => return Err(Fault::new(self.at, "a comment has no end")),
                },
                _ => return Ok(()),
            }
        }
    }

    fn expect(&mut self, byte: u8, of: &str) -> Result<(), Fault> {
        self.blank()?;
        match self.peek() {
            Some(found) if found == byte => {
                self.at += 1;
                Ok(())
            }
            _ => Err(self.unexpected(&format!("`{}` of {of}", char::from(byte)))),
        }
    }

    #[cold]
    fn unexpected(&self, expected: &str) -> Fault {
        let rest = &self.bytes[self.at.min(self.bytes.len())..];
        let found: String = String::from_utf8_lossy(&rest[..rest.len().min(80)]).chars().take(24).collect();
        let found = match rest.is_empty() {
            true => "the statement ends".into(),
            false => format!("found {found:?}"),
        };
        Fault::new(self.at, format!("{found}, expected {expected}"))
    }

    /// The bytes from here on of which all are such.
    fn run(&mut self, is_such: impl Fn(u8) -> bool) -> Result<&'a str, Fault> {
        let rest = &self.bytes[self.at..];
        let run = &rest[..rest.iter().position(|b| !is_such(*b)).unwrap_or(rest.len())];
        self.bounded(run.len())?;
        let text = std::str::from_utf8(run).map_err(|_| self.unexpected("ASCII"))?;
        self.at += run.len();
        Ok(text)
    }

    fn bounded(&self, bytes: usize) -> Result<(), Fault> {
        match bytes <= self.limits.token_bytes_max {
            true => Ok(()),
            false => Err(Fault::new(
                self.at,
                format!("a token is longer than {} bytes", self.limits.token_bytes_max),
            )),
        }
    }

    /// Reads a name: upper-case letters, digits and underscores, after `!` if the file's author has defined
    /// it. Names of sections and of the file also have hyphens.
    fn keyword(&mut self, of: &str, has_hyphens: bool) -> Result<&'a str, Fault> {
        let from = self.at;
        self.at += usize::from(self.peek() == Some(b'!'));
        match self.peek() {
            Some(b'A'..=b'Z' | b'_') => {}
            _ => return Err(self.unexpected(&format!("a keyword of {of}, in capitals"))),
        }
        self.run(|b| matches!(b, b'A'..=b'Z' | b'0'..=b'9' | b'_') || (has_hyphens && b == b'-'))?;
        match std::str::from_utf8(&self.bytes[from..self.at]) {
            Ok(keyword) => Ok(keyword),
            Err(_) => Err(self.unexpected("ASCII")),
        }
    }

    /// Reads `#12`.
    fn reference(&mut self) -> Result<u64, Fault> {
        self.at += 1;
        let from = self.at;
        let digits = self.run(|b| b.is_ascii_digit())?;
        if digits.is_empty() {
            return Err(self.unexpected("the digits of an instance's name"));
        }
        digits.parse().map_err(|_| Fault::new(from, format!("the name of an instance is above {}", u64::MAX)))
    }

    /// Reads the record or records of an instance.
    fn body(&mut self) -> Result<Body<'a>, Fault> {
        if self.peek() != Some(b'(') {
            if self.peek() == Some(b'&') {
                return Err(Fault::new(
                    self.at,
                    "scopes, which the second edition has no more, are not read",
                ));
            }
            return self.record().map(Body::Simple);
        }
        self.at += 1;
        let mut records = Vec::new();
        loop {
            self.blank()?;
            match self.peek() {
                Some(b')') if !records.is_empty() => {
                    self.at += 1;
                    return Ok(Body::Complex(records));
                }
                _ => records.push(self.record()?),
            }
        }
    }

    fn record(&mut self) -> Result<Record<'a>, Fault> {
        let keyword = self.keyword("an entity", false)?;
        self.blank()?;
        Ok(Record { keyword, parameters: self.parameters(0)? })
    }

    /// Reads `(a,b,..)`; `depth` lists are around it.
    fn parameters(&mut self, depth: usize) -> Result<Vec<Value<'a>>, Fault> {
        if depth > self.limits.depth_max {
            return Err(Fault::new(
                self.at,
                format!("lists are nested more than {} deep", self.limits.depth_max),
            ));
        }
        self.expect(b'(', "a list")?;
        self.blank()?;
        let mut values = Vec::new();
        if self.peek() == Some(b')') {
            self.at += 1;
            return Ok(values);
        }
        loop {
            self.values += 1;
            if self.values > self.limits.values_max {
                let most = self.limits.values_max;
                return Err(Fault::new(self.at, format!("a statement has more than {most} values")));
            }
            values.push(self.value(depth)?);
            self.blank()?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b')') => {
                    self.at += 1;
                    return Ok(values);
                }
                _ => return Err(self.unexpected("`,` or `)` of a list")),
            }
            self.blank()?;
        }
    }

    fn value(&mut self, depth: usize) -> Result<Value<'a>, Fault> {
        match self.peek() {
            Some(b'$') => self.sign(Value::Omitted),
            Some(b'*') => self.sign(Value::Derived),
            Some(b'#') => self.reference().map(Value::Reference),
            Some(b'\'') => self.text(),
            Some(b'.') => self.enumeration(),
            Some(b'"') => self.binary(),
            Some(b'(') => self.parameters(depth + 1).map(Value::List),
            Some(b'+' | b'-' | b'0'..=b'9') => self.number(),
            Some(b'A'..=b'Z' | b'_' | b'!') => self.typed(depth),
            Some(b'@') => Err(Fault::new(self.at, "constants, of the third edition, are not read")),
            Some(b'<') => {
                Err(Fault::new(self.at, "references to other files, of the third edition, are not read"))
            }
            _ => Err(self.unexpected("a value")),
        }
    }

    fn sign(&mut self, value: Value<'a>) -> Result<Value<'a>, Fault> {
        self.at += 1;
        Ok(value)
    }

    fn text(&mut self) -> Result<Value<'a>, Fault> {
        let from = self.at + 1;
        let mut to = from;
        loop {
            match self.bytes[to..].iter().position(|b| *b == b'\'') {
                None => return Err(Fault::new(self.at, "a string has no end")),
                Some(bytes) if self.bytes.get(to + bytes + 1) == Some(&b'\'') => to += bytes + 2,
                Some(bytes) => {
                    to += bytes;
                    break;
                }
            }
        }
        self.bounded(to - from)?;
        self.at = to + 1;
        text::decode(&self.bytes[from..to], from).map(Value::Text)
    }

    fn enumeration(&mut self) -> Result<Value<'a>, Fault> {
        self.at += 1;
        let name = self.run(|b| matches!(b, b'A'..=b'Z' | b'0'..=b'9' | b'_'))?;
        if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) || self.peek() != Some(b'.') {
            return Err(self.unexpected("an enumeration, such as `.METRE.`"));
        }
        self.at += 1;
        Ok(Value::Enumeration(name))
    }

    fn binary(&mut self) -> Result<Value<'a>, Fault> {
        self.at += 1;
        let digits = self.run(|b| b.is_ascii_digit() || (b'A'..=b'F').contains(&b))?;
        let is_whole = matches!(digits.as_bytes(), [b'0', ..] | [b'1'..=b'3', _, ..]);
        if !is_whole || self.peek() != Some(b'"') {
            return Err(self.unexpected("a binary: a digit from 0 to 3, then hexadecimal digits"));
        }
        self.at += 1;
        Ok(Value::Binary(digits))
    }

    fn number(&mut self) -> Result<Value<'a>, Fault> {
        let from = self.at;
        let text = self.run(|b| matches!(b, b'+' | b'-' | b'.' | b'E' | b'0'..=b'9'))?;
        let fault =
            |reason: &str| Err(Fault::new(from, format!("{:?} {reason}", &text[..text.len().min(40)])));
        let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
        if !digits.starts_with(|c: char| c.is_ascii_digit()) {
            return fault("is no number");
        }
        if digits.bytes().all(|b| b.is_ascii_digit()) {
            return match text.parse() {
                Ok(integer) => Ok(Value::Integer(integer)),
                Err(_) => fault("is an integer of more than 64 bits"),
            };
        }
        let mantissa = digits.split('E').next().unwrap_or_default();
        match text.parse::<f64>() {
            Ok(real) if mantissa.contains('.') && real.is_finite() => Ok(Value::Real(real)),
            Ok(real) if !real.is_finite() => fault("is a real beyond those of 64 bits"),
            _ => fault("is no number"),
        }
    }

    fn typed(&mut self, depth: usize) -> Result<Value<'a>, Fault> {
        let from = self.at;
        let keyword = self.keyword("a type", false)?;
        self.blank()?;
        let mut values = self.parameters(depth + 1)?;
        match (values.pop(), values.is_empty()) {
            (Some(value), true) => Ok(Value::Typed(keyword, Box::new(value))),
            _ => Err(Fault::new(from, format!("{keyword} as a value has one parameter"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(text: &str) -> Result<(u64, Body<'_>), String> {
        match parse(text.as_bytes(), &Limits::default()) {
            Ok(Statement::Instance(id, body)) => Ok((id, body)),
            Ok(other) => Err(format!("{other:?}")),
            Err(fault) => Err(format!("{}: {}", fault.at, fault.reason)),
        }
    }

    #[test]
    fn every_kind_of_value_is_read() {
        let text = "#18446744073709551615 = A('',(0.,-1.5E-3,+7),.T., $ ,*,\"0AF\",#1,/* , */LENGTH_MEASURE(3.),((),(#2)))";
        let (id, body) = instance(text).unwrap();
        assert_eq!(id, u64::MAX);
        let expected = vec![
            Value::Text("".into()),
            Value::List(vec![Value::Real(0.0), Value::Real(-1.5e-3), Value::Integer(7)]),
            Value::Enumeration("T"),
            Value::Omitted,
            Value::Derived,
            Value::Binary("0AF"),
            Value::Reference(1),
            Value::Typed("LENGTH_MEASURE", Box::new(Value::Real(3.0))),
            Value::List(vec![Value::List(vec![]), Value::List(vec![Value::Reference(2)])]),
        ];
        assert_eq!(body, Body::Simple(Record { keyword: "A", parameters: expected }));
    }

    #[test]
    fn complex_instances_have_a_record_an_entity() {
        let (_, body) = instance("#5=(LENGTH_UNIT()NAMED_UNIT(*) SI_UNIT(.MILLI.,.METRE.))").unwrap();
        let keywords: Vec<_> = body.records().iter().map(|r| (r.keyword, r.parameters.len())).collect();
        assert_eq!(keywords, [("LENGTH_UNIT", 0), ("NAMED_UNIT", 1), ("SI_UNIT", 2)]);
        assert!(matches!(body, Body::Complex(_)));
    }

    #[test]
    fn odd_statements_are_refused_where_they_are_odd() {
        let odd = [
            ("#=A()", 1),
            ("#18446744073709551616=A()", 1),
            ("#1 A()", 3),
            ("#1=", 3),
            ("#1=a()", 3),
            ("#1=A", 4),
            ("#1=A(", 5),
            ("#1=A(1", 6),
            ("#1=A(1,)", 7),
            ("#1=A(1 2)", 7),
            ("#1=A()B()", 6),
            ("#1=()", 4),
            ("#1=(A()", 7),
            ("#1=A('x)", 5),
            ("#1=A(.T)", 7),
            ("#1=A(.1.)", 7),
            ("#1=A(\"4A\")", 8),
            ("#1=A(\"1\")", 7),
            ("#1=A(1E5)", 5),
            ("#1=A(1.E)", 5),
            ("#1=A(1.E999)", 5),
            ("#1=A(--1)", 5),
            ("#1=A(9223372036854775808)", 5),
            ("#1=A(B(1,2))", 5),
            ("#1=A(B())", 5),
            ("#1=A(@c)", 5),
            ("#1=A(<x#y>)", 5),
            ("#1=&SCOPE", 3),
            ("#1=A(/*1)", 5),
        ];
        for (text, at) in odd {
            let fault = instance(text).expect_err(text);
            assert!(fault.starts_with(&format!("{at}: ")), "{text}: {fault}");
        }
    }

    #[test]
    fn nesting_is_read_up_to_its_bound() {
        let limits = Limits { depth_max: 3, ..Limits::default() };
        let nested = |depth: usize| format!("#1=A({}{})", "(".repeat(depth), ")".repeat(depth));
        assert!(parse(nested(3).as_bytes(), &limits).is_ok());
        assert!(parse(nested(4).as_bytes(), &limits).is_err());
        assert!(parse(format!("#1=A{}", "(B".repeat(100_000)).as_bytes(), &Limits::default()).is_err());
    }

    #[test]
    fn values_of_a_statement_are_bounded() {
        let limits = Limits { values_max: 4, ..Limits::default() };
        assert!(parse(b"#1=A($,($,$))", &limits).is_ok());
        let fault = parse(b"#1=(A($,($))B($,$))", &limits).unwrap_err();
        assert!(format!("{fault:?}").contains("more than 4 values"), "{fault:?}");
    }

    #[test]
    fn tokens_are_bounded() {
        let limits = Limits { token_bytes_max: 8, ..Limits::default() };
        for token in
            ["'123456789'", "123456789", ".ABCDEFGHI.", "ABCDEFGHI(1)", "\"0ABCDEF01\"", "#123456789"]
        {
            assert!(parse(format!("#1=A({token})").as_bytes(), &limits).is_err(), "{token}");
        }
        assert!(parse(b"#1=A('12345678')", &limits).is_ok());
    }
}
