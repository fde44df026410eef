//! `tercel access` and the audit, by processes as an operator runs them.

use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tercel::access::{Principal, Role, grant};
use tercel::tools::wire::frame::Kind;
use tercel::tools::wire::id::{ClientId, PageId};
use tercel::tools::wire::message::{Fetch, Hello, Refused, Via};
use tercel_testkit::stranger::Stranger;

use crate::common::{Serving, err, free, group_status, in_one_line, out, tercel, until};
use crate::group::three;

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
    // A thread of its own writes it.
    for what in ["connected", "refused", "grant", "revoke", "define"] {
        until(|| {
            let told = std::fs::read_to_string(&audit).unwrap();
            let whole = told.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let mut lines = whole.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            lines.any(|line| line["what"] == what).then_some(())
        });
    }
}

/// The first answer of a member to a client that reads there: the sentence of its refusal, if it is one.
fn read_at(member: &str, client: u64) -> Result<(), String> {
    let stream = TcpStream::connect(member).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut stranger = Stranger::new(stream);
    let hello = Hello { via: Some(Via::Any), ..Hello::new(ClientId(client)) };
    stranger.send(Kind::Hello, |out| hello.encode(out));
    loop {
        let (header, body) = stranger.next_message().expect("an answer");
        match header.kind {
            Kind::Welcome => {
                let fetch = Fetch { page: PageId::new(1).unwrap(), fetch: 1, since: None };
                stranger.send(Kind::Fetch, |out| fetch.encode(out));
            }
            Kind::Page => return Ok(()),
            Kind::Refused => return Err(Refused::decode(&body).unwrap().text),
            _ => {}
        }
    }
}

#[test]
fn revoke_waits_for_members_and_names_silent_ones() {
    let dir = tempfile::tempdir().unwrap();
    let (ats, servings) = three(dir.path());
    let (all, copy) = (ats.join(","), &ats[2]);
    out(&tercel(&["import", "debian", "--sample", "--server", &all]));
    let revoke =
        |more: &[&str]| tercel(&[&["access", "revoke", "anyone", "read", "--server", &all], more].concat());
    let give = || {
        let role = "read".parse::<Role>().unwrap();
        grant(&all.parse().unwrap(), None, &Principal::Anyone, &role).unwrap();
    };
    give();
    until(|| read_at(copy, 1).ok());
    let said = revoke(&[]);
    assert!(said.status.success(), "{}", err(&said));
    let refused = read_at(copy, 2).unwrap_err();
    assert!(refused.contains("anyone lacks the role `read`"), "{refused}");
    // A member that is stopped for a while keeps its connections, and says nothing.
    give();
    let signal = |name: &str| {
        let process = servings[2].0.id().to_string();
        assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
    };
    signal("-STOP");
    let begun = Instant::now();
    let (plain, json) = (revoke(&[]), revoke(&["--json"]));
    signal("-CONT");
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
    let text = in_one_line(&err(&plain));
    assert_eq!(plain.status.code(), Some(75), "{text}");
    let status = group_status(&all).unwrap();
    let members = status["members"].as_array().unwrap();
    let member = members.iter().find(|member| member["address"] == copy.as_str()).unwrap();
    let named = format!("member {} at {copy}", member["member"].as_str().unwrap());
    assert!(text.contains(&named) && text.contains("run the command again"), "{text}");
    assert!(ats[..2].iter().all(|at| !text.contains(at.as_str())), "{text}");
    assert_eq!(json.status.code(), Some(75));
    let told: Value = serde_json::from_slice(&json.stdout).unwrap();
    let unheard = told["unheard"].as_array().unwrap();
    assert!(unheard.len() == 1 && unheard[0]["address"] == copy.as_str(), "{told}");
    // Once it goes on it applies what it has missed.
    until(|| revoke(&[]).status.success().then_some(()));
    let refused = read_at(copy, 3).unwrap_err();
    assert!(refused.contains("anyone lacks the role `read`"), "{refused}");
}
