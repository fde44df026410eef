//! `tercel bench load`, in its quick form: that every row comes out, and that its numbers can be.

use crate::common::{err, out, tercel};
use serde_json::Value;

/// The rows of a run, by their names.
fn rows(only: &[&str]) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let only = only.iter().flat_map(|row| ["--only", row]);
    let args: Vec<&str> =
        ["bench", "load", "--quick", "--json", "--dir", dir].into_iter().chain(only).collect();
    let answer: Value = serde_json::from_str(&out(&tercel(&args))).unwrap();
    assert_eq!(answer["suite"], "load");
    answer["rows"].as_array().unwrap().clone()
}

/// A number of a row that is one and is not negative.
fn number(row: &Value, name: &str) -> f64 {
    let number = row[name].as_f64().unwrap_or_else(|| panic!("no {name} in {row}"));
    assert!(number.is_finite() && number >= 0.0, "{name} in {row}");
    number
}

fn is_of_fetches_and_commits_beside(rows: &[Value], antagonist: &str) {
    let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().unwrap()).collect();
    assert_eq!(ids, [format!("load.{antagonist}.fetch.p99"), format!("load.{antagonist}.commit.p99")]);
    for row in rows {
        assert_eq!(row["unit"], "us");
        assert!(number(row, "n") >= 10.0, "{row}");
        // Nothing over a socket takes less than a microsecond.
        assert!(number(row, "value") > 1.0 && number(row, "limit_value") > 1.0, "{row}");
        let ratio = number(row, "ratio");
        assert!(ratio > 0.0 && number(row, "ratio_lo") <= ratio && ratio <= number(row, "ratio_hi"), "{row}");
        let bystander = &row["bystander"];
        assert!(number(bystander, "value") > 1.0 && number(bystander, "of_limit") > 0.0, "{row}");
        assert!(number(bystander, "ratio_lo") <= number(bystander, "ratio"), "{row}");
        number(bystander, "cores");
        // With one round there is one ratio, and the two shares make up the whole of it.
        let product = number(bystander, "of_limit") * number(bystander, "ratio");
        assert!((product / ratio - 1.0).abs() < 1e-6, "{row}");
    }
}

#[test]
fn what_others_feel_of_large_transactions_has_its_rows() {
    is_of_fetches_and_commits_beside(&rows(&["tx100k"]), "tx100k");
}

#[test]
fn what_others_feel_of_large_values_has_its_rows() {
    is_of_fetches_and_commits_beside(&rows(&["value64m"]), "value64m");
}

#[test]
fn what_others_feel_of_each_misbehaviour_has_its_rows() {
    for antagonist in ["slow_reader", "half_open", "never_ack", "greedy", "flood"] {
        is_of_fetches_and_commits_beside(&rows(&[antagonist]), antagonist);
    }
}

#[test]
fn clients_at_work_have_their_rows() {
    let rows = rows(&["active"]);
    let ids: Vec<&str> = rows.iter().map(|row| row["id"].as_str().unwrap()).collect();
    let expected =
        ["bytes_per_client", "commit", "fetch", "rate"].map(|name| format!("load.active.1000.{name}"));
    assert_eq!(ids, expected);
    let (commit, fetch, rate) = (&rows[1], &rows[2], &rows[3]);
    for paced in [commit, fetch] {
        assert!(number(paced, "value") > 1.0 && number(paced, "value") <= number(paced, "p99"), "{paced}");
        assert!(number(paced, "n") > 0.0);
    }
    assert!(number(rate, "value") > 0.0 && number(rate, "n") > 0.0);
}

#[test]
fn unknown_row_of_load_is_refused_with_the_rows_of_the_suite() {
    let refused = tercel(&["bench", "load", "--only", "floods"]);
    let said = err(&refused);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("suite load has no row floods"), "{said}");
    assert!(said.contains("its rows are slow_reader") && said.contains("active"), "{said}");
}
