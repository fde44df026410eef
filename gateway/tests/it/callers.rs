//! Gateways that speak for their callers: the servers judge each by the client that its certificate names.

use std::io::{BufReader, Read, Write};
use std::time::{Duration, Instant};

use rcgen::ExtendedKeyUsagePurpose::ClientAuth;
use tercel::Addresses;
use tercel::access::{Principal, Role, grant, revoke};
use tercel_gateway::{Config, StartError};

use crate::common::{World, head};
use crate::https::Papers;

/// A gateway over a Unix socket, whose user may speak for clients, and callers with certificates.
struct Known {
    papers: Papers,
    world: World,
    servers: Addresses,
}

impl Known {
    fn new() -> Known {
        let papers = Papers::new();
        let https = Some(papers.https(true));
        let world = World::at_socket(|config| Config { https, speaks_for_callers: true, ..config });
        let servers: Addresses = world.server.addresses()[0].clone().into();
        let known = Known { papers, world, servers };
        let own = own();
        for (who, role) in [
            (own.as_str(), "speak-for"),
            (&own, "read"),
            (&own, "define"),
            (&own, "write"),
            ("client:ann", "read"),
            ("client:ann", "call Account"),
            ("client:ben", "call Clock.add"),
        ] {
            known.grant(who, role);
        }
        known
    }

    fn grant(&self, who: &str, role: &str) {
        let (who, role) = right(who, role);
        grant(&self.servers, None, &who, &role).unwrap();
    }

    fn revoke(&self, who: &str, role: &str) {
        let (who, role) = right(who, role);
        revoke(&self.servers, None, &who, &role).unwrap();
    }

    /// Asks with a certificate that names this URI. A stream of events ends at its head.
    fn ask(&self, uri: &str, line: &str, header: &str, body: &str) -> (u16, String) {
        let caller = self.papers.sign_uri(uri, ClientAuth);
        let mut stream = self.papers.connect(self.world.at(), "localhost", Some(caller));
        let length = body.len();
        let asked = format!(
            "{line} HTTP/1.1\r\nHost: localhost\r\n{header}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(asked.as_bytes()).unwrap();
        let mut stream = BufReader::new(stream);
        let (status, headers) = head(&mut stream).expect("an answer");
        let mut body = String::new();
        if headers.get("content-type").is_some_and(|of| of == "text/event-stream") {
            return (status, body);
        }
        stream.read_to_string(&mut body).unwrap();
        (status, body)
    }

    fn get(&self, who: &str, path: &str) -> (u16, String) {
        self.ask(&format!("tercel://client/{who}"), &format!("GET {path}"), "", "")
    }

    fn post(&self, who: &str, path: &str, body: &str) -> (u16, String) {
        self.ask(&format!("tercel://client/{who}"), &format!("POST {path}"), "", body)
    }
}

fn right(who: &str, role: &str) -> (Principal, Role) {
    (who.parse().unwrap(), role.parse().unwrap())
}

#[test]
fn callers_have_rights_of_their_own() {
    let known = Known::new();
    let (status, body) = known.get("ann", "/v1/objects/purse");
    assert_eq!(status, 200, "{body}");
    let (status, body) = known.post("ann", "/v1/objects/purse/pay", "[5]");
    assert_eq!(status, 200, "{body}");
    let (status, body) = known.post("ann", "/v1/services/Clock/add", "[2,3]");
    assert_eq!(status, 404, "what it may not call it does not see: {body}");
    // Another sees no page, though the gateway has it in its cache.
    let (status, body) = known.get("ben", "/v1/objects/purse");
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("client:ben lacks the role `read`"), "{body}");
    let (status, body) = known.post("ben", "/v1/services/Clock/add", "[2,3]");
    assert_eq!((status, body.as_str()), (200, r#"{"gives":5}"#));
    // Nor does a caller see what is for operators.
    let (_, offered) = known.get("ben", "/v1/services");
    assert!(offered.contains("Clock") && !offered.contains("Account"), "{offered}");
    for path in ["/v1/status", "/metrics", "/v1/roots"] {
        let (status, body) = known.get("ann", path);
        assert_eq!(status, if path == "/v1/roots" { 200 } else { 403 }, "{path}: {body}");
    }
    let (status, body) = known.get("cleo", "/v1/roots");
    assert_eq!(status, 403, "{body}");
    assert!(body.contains("client:cleo lacks"), "{body}");
}

/// The roles that are tried, each alone.
const ROLES: [&str; 9] =
    ["read", "write", "define", "call Clock", "call Account", "backup", "operate", "grant", "speak-for"];

/// A request, its body, and the roles each of which alone lets it pass.
type Route = (String, &'static str, &'static [&'static str]);

/// All routes. A method of an object needs two roles: the gateway reads of which class the object is.
fn routes(purse: &str) -> Vec<Route> {
    let get = |path: &str, roles| (format!("GET {path}"), "", roles);
    let (reads, operates): (&[&str], &[&str]) = (&["read"], &["operate"]);
    vec![
        get("/v1/roots", reads),
        get("/v1/objects/purse", reads),
        get(&format!("/v1/objects/{purse}"), reads),
        get("/v1/watch/purse", reads),
        get("/v1/tables/seats", reads),
        get("/v1/maps/purses", reads),
        get("/v1/status", operates),
        get("/metrics", operates),
        // It has the classes of the space.
        get("/openapi.json", &["read", "write", "define"]),
        get("/", &ROLES),
        get("/v1/health", &ROLES),
        get("/v1/services", &ROLES),
        (format!("POST /v1/objects/{purse}/pay"), "[1]", &[]),
        ("POST /v1/services/Clock/tick".into(), "", &["call Clock"]),
    ]
}

#[test]
fn gateway_judges_every_route() {
    let known = Known::new();
    let name = |role: &str| role.replace(' ', "-").to_lowercase();
    ROLES.iter().for_each(|role| known.grant(&format!("client:{}", name(role)), role));
    let ask = |role: &str, line: &str, body: &str| {
        known.ask(&format!("tercel://client/{}", name(role)), line, "", body)
    };
    let state = || {
        let (_, status) = ask("operate", "GET /v1/status", "");
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let cents = known.world.client.run(|tx| Ok(tx.get(known.world.purse)?.cents())).unwrap();
        (status["visible"].as_u64().unwrap(), cents)
    };
    let (before, purse) = (state(), known.world.purse.oref().to_string());
    let mut ticks = String::new();
    // Refusals come first, so that all of them find the same state.
    for is_served in [false, true] {
        for role in ROLES {
            for (line, body, roles) in
                routes(&purse).into_iter().filter(|of| of.2.contains(&role) == is_served)
            {
                let (status, said) = ask(role, &line, body);
                let needed = if line.starts_with("GET") { roles[0] } else { "read" };
                let words = format!("client:{} lacks the role `{needed}`", name(role));
                let is_hidden = status == 404 && said.contains("services: none");
                match is_served {
                    true if said.contains("the root `") => assert_eq!(status, 404, "{role} {line}: {said}"),
                    true => assert_eq!(status, 200, "{role} {line}: {said}"),
                    // A caller that may not call it does not see it.
                    false if line.contains("/Clock/") => assert!(is_hidden, "{role} {line}: {said}"),
                    false if role == "read" && line.contains("/pay") => {
                        assert!(status == 404 && said.contains("no methods"), "{line}: {said}");
                    }
                    false => {
                        assert!(status == 403 && said.contains(&words), "{role} {line} {status}: {said}")
                    }
                }
                if line.ends_with("/tick") && is_served {
                    ticks.push_str(&said);
                }
            }
        }
        if !is_served {
            assert_eq!(state(), before, "something changed");
        }
    }
    // The first call of the procedure that ran is the first one that was let pass.
    assert_eq!(ticks, r#"{"gives":1}"#);
}

#[test]
fn callers_without_a_client_name_are_refused() {
    let known = Known::new();
    for uri in ["tercel://euros/member/1", "https://ann.example"] {
        let (status, body) = known.ask(uri, "GET /v1/roots", "", "");
        assert_eq!(status, 403, "{body}");
        assert!(body.contains("tercel://client/NAME"), "{body}");
    }
}

#[test]
fn keys_of_callers_are_their_own() {
    let known = Known::new();
    known.grant("client:ann", "call Clock");
    known.grant("client:ben", "call Clock");
    let tick = |who: &str| {
        let uri = format!("tercel://client/{who}");
        let said = known.ask(&uri, "POST /v1/services/Clock/tick", "Idempotency-Key: a\r\n", "");
        assert_eq!(said.0, 200, "{}", said.1);
        said.1
    };
    let (ann, ben) = (tick("ann"), tick("ben"));
    assert_ne!(ann, ben, "the answer under a key is its caller's");
    assert_eq!((tick("ann"), tick("ben")), (ann, ben));
}

#[test]
fn revoked_rights_reach_callers() {
    let known = Known::new();
    assert_eq!(known.get("ann", "/v1/roots").0, 200);
    // Rights of a caller, and then the gateway's.
    for (who, role) in [("client:ann", "read"), (&*own(), "speak-for")] {
        known.revoke(who, role);
        let end = Instant::now() + Duration::from_secs(30);
        while known.get("ann", "/v1/roots").0 != 403 {
            assert!(Instant::now() < end, "{who} keeps {role}");
        }
        known.grant(who, role);
        while known.get("ann", "/v1/roots").0 != 200 {
            assert!(Instant::now() < end, "{who} does not get {role} again");
        }
    }
}

fn own() -> String {
    format!("uid:{}", rustix::process::getuid().as_raw())
}

#[test]
fn gateway_speaks_for_proven_callers_alone() {
    let papers = Papers::new();
    let world = World::new();
    for https in [None, Some(papers.https(false))] {
        let config = Config::new(world.server.addresses()[0].clone().into(), "127.0.0.1:0");
        let config = Config { https, speaks_for_callers: true, ..config };
        assert!(matches!(tercel_gateway::Gateway::start(config), Err(StartError::Unknown)));
    }
}
