//! `tercel access` and the audit, by processes as an operator runs them.

use serde_json::Value;

use crate::common::{Serving, err, free, out, tercel};

#[test]
fn rights_shut_out_and_are_audited() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let (data, audit, tcp, unix) = (at("space"), at("audit"), free(), format!("unix:{}", at("socket")));
    let listen = ["--listen", &tcp, "--listen", &unix, "--audit", &audit];
    let serving = Serving::start_with(&data, &listen);
    let said = out(&tercel(&["access", "whoami", "--json", "--server", &unix]));
    let me: Value = serde_json::from_str(&said).unwrap();
    let who = me["who"].as_str().unwrap().to_owned();
    assert!(who.starts_with("uid:") && me["judged"] == false, "{said}");
    out(&tercel(&["import", "debian", "--sample", "--server", &tcp]));
    let query = |at: &str| tercel(&["query", "rdepends", "libc6", "--server", at]);
    out(&query(&tcp));
    // The server's own user is known over the loopback device, too, where it may operate and not read.
    let said = tercel(&["access", "grant", &who, "read", "--server", &tcp]);
    assert!(said.status.success(), "{}", err(&said));
    let refused = query(&tcp);
    assert_eq!(refused.status.code(), Some(1));
    let text = err(&refused);
    assert!(text.contains("anyone lacks the role `read`") && text.contains("tercel access grant"), "{text}");
    out(&query(&unix));
    let stat = tercel(&["stat", "--server", &tcp]);
    assert!(stat.status.success(), "{}", err(&stat));
    let test = |role: &[&str]| {
        tercel(&[&["access", "test", &who], role, &["--server", &unix]].concat()).status.code()
    };
    assert_eq!((test(&["read"]), test(&["write", "Package"]), test(&["reads"])), (Some(0), Some(1), Some(2)));
    let call =
        tercel(&["access", "grant", "client:shop", "call", "Bank.pay", "Bank.look", "--server", &unix]);
    assert!(call.status.success(), "{}", err(&call));
    // They outlive the server, and one that is revoked counts at once.
    drop(serving);
    let _serving = Serving::start_with(&data, &listen);
    let listed = out(&tercel(&["access", "list", "--json", "--server", &unix]));
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(
        (listed["rights"].as_array().unwrap().len(), &listed["judged"]),
        (3, &true.into()),
        "{listed}"
    );
    out(&query(&unix));
    assert!(tercel(&["access", "revoke", &who, "read", "--server", &unix]).status.success());
    let text = err(&query(&unix));
    assert!(text.contains(&format!("{who} lacks the role `read`")), "{text}");
    let told = std::fs::read_to_string(&audit).unwrap();
    let lines: Vec<Value> = told.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for what in ["connected", "refused", "grant", "revoke", "define"] {
        assert!(lines.iter().any(|line| line["what"] == what), "{what}: {told}");
    }
}
