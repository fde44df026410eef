//! Values, instances and files as text.
//!
//! Strings are written in printable ASCII, reals so that they are read back as the same number.

use std::fmt::Write as _;

use crate::text;
use crate::value::{Body, Record, Value};

/// Appends a value.
pub fn write_value(value: &Value<'_>, out: &mut String) {
    match value {
        Value::Omitted => out.push('$'),
        Value::Derived => out.push('*'),
        Value::Integer(integer) => _ = write!(out, "{integer}"),
        Value::Real(real) => write_real(*real, out),
        Value::Text(text) => text::encode(text, out),
        Value::Enumeration(name) => _ = write!(out, ".{name}."),
        Value::Binary(digits) => _ = write!(out, "\"{digits}\""),
        Value::Reference(id) => _ = write!(out, "#{id}"),
        Value::List(values) => write_list(values, out),
        Value::Typed(keyword, value) => {
            let _ = write!(out, "{keyword}(");
            write_value(value, out);
            out.push(')');
        }
    }
}

/// Appends an instance with its semicolon.
pub fn write_instance(id: u64, body: &Body<'_>, out: &mut String) {
    let _ = write!(out, "#{id}=");
    match body {
        Body::Simple(record) => write_record(record, out),
        Body::Complex(records) => {
            out.push('(');
            records.iter().for_each(|record| write_record(record, out));
            out.push(')');
        }
    }
    out.push(';');
}

/// Writes a file of one data section: its name, its schema, and the text of its instances.
pub fn write_file(name: &str, schema: &str, instances: &str) -> String {
    let mut out = String::with_capacity(instances.len() + 512);
    out.push_str("ISO-10303-21;\nHEADER;\nFILE_DESCRIPTION((''),'2;1');\nFILE_NAME(");
    text::encode(name, &mut out);
    out.push_str(",'',(''),(''),'tercel','','');\nFILE_SCHEMA((");
    text::encode(schema, &mut out);
    out.push_str("));\nENDSEC;\nDATA;\n");
    out.push_str(instances);
    out.push_str("ENDSEC;\nEND-ISO-10303-21;\n");
    out
}

fn write_record(record: &Record<'_>, out: &mut String) {
    out.push_str(record.keyword);
    write_list(&record.parameters, out);
}

fn write_list(values: &[Value<'_>], out: &mut String) {
    out.push('(');
    for (i, value) in values.iter().enumerate() {
        out.push_str(if i > 0 { "," } else { "" });
        write_value(value, out);
    }
    out.push(')');
}

/// Appends the shortest digits that name this number; a real has a point, and its exponent a capital.
fn write_real(real: f64, out: &mut String) {
    let digits = format!("{real:E}");
    let (mantissa, exponent) = digits.split_once('E').unwrap_or((&digits, "0"));
    match exponent.parse::<i32>() {
        Ok(-5..=15) => {
            let plain = format!("{real}");
            out.push_str(&plain);
            out.push_str(if plain.contains('.') { "" } else { "." });
        }
        _ => {
            let point = if mantissa.contains('.') { "" } else { "." };
            let _ = write!(out, "{mantissa}{point}E{exponent}");
        }
    }
}
