//! Methods and procedures, called by what the server says of them.

use serde_json::{Value, json};
use tercel::rpc::Output;
use tercel::{
    Bytes, Called, Client, Context, List, Obj, Object, Record, Ref, Server, Text, interface, service,
};
use tercel_packages::model::Mark;

use crate::common::{Serving, err, in_one_line, out, tercel};

#[interface]
trait Account {
    #[read]
    fn balance(&self) -> i64;
    fn pay(&mut self, to: Ref<Purse>, cents: u16) -> Result<i64, Overdrawn>;
    fn close(&mut self);
    #[read]
    fn echo(&self, of: Every) -> Every;
    #[read]
    fn length(&self, of: &str) -> u64;
}

#[interface]
trait Door {
    fn close(&mut self);
}

#[derive(Object)]
struct Purse {
    cents: i64,
}

#[derive(Object)]
struct Rock {
    grams: u32,
}

#[derive(Record, Debug)]
struct Overdrawn {
    short: i64,
    why: Text,
}

#[derive(Record, Debug, Clone, PartialEq)]
enum Colour {
    Red,
    Grey(u8),
    Mixed { red: u8, blue: u8 },
}

/// One of every type that a field can have.
#[derive(Record, Debug, Clone)]
struct Every {
    small: i8,
    large: u64,
    real: f64,
    yes: bool,
    text: Text,
    bytes: Bytes,
    none: Option<u32>,
    some: Option<Text>,
    numbers: List<u16>,
    words: List<Text>,
    purse: Ref<Purse>,
    colour: Colour,
    colours: List<Colour>,
}

impl Account for Purse {
    fn balance(this: &Obj<Purse>) -> Called<i64> {
        Ok(this.cents())
    }

    fn pay(this: &Obj<Purse>, _: Ref<Purse>, cents: u16) -> Called<i64, Overdrawn> {
        let left = this.cents() - i64::from(cents);
        if left < 0 {
            return Err(Overdrawn { short: -left, why: "it is empty".into() }.into());
        }
        this.edit()?.set_cents(left)?;
        Ok(left)
    }

    fn close(this: &Obj<Purse>) -> Called<()> {
        Ok(this.edit()?.set_cents(0)?)
    }

    fn echo(_: &Obj<Purse>, of: Every) -> Called<Every> {
        Ok(of)
    }

    fn length(_: &Obj<Purse>, of: &str) -> Called<u64> {
        Ok(of.len() as u64)
    }
}

impl Door for Purse {
    fn close(_: &Obj<Purse>) -> Called<()> {
        Ok(())
    }
}

#[service]
trait Bell {
    #[one_way]
    fn ring(&self, times: u8);
    #[read]
    fn names(&self, prefix: &str) -> Result<List<Text>, Colour>;
    fn crack(&self);
    #[slow]
    fn nap(&self, ms: u32);
    #[slow]
    fn chime(&self, sounds: &Output<u32>);
}

struct Silent;

impl Bell for Silent {
    fn ring(&self, _: &Context<'_>, _: u8) {}

    fn names(&self, _: &Context<'_>, prefix: &str) -> Called<List<Text>, Colour> {
        match prefix {
            "grey" => Err(Colour::Grey(9).into()),
            prefix => Ok(["a", "b"].map(|name| Text(format!("{prefix}{name}"))).into()),
        }
    }

    fn crack(&self, _: &Context<'_>) -> Called<()> {
        panic!("it cracks")
    }

    fn nap(&self, _: &Context<'_>, ms: u32) -> Called<()> {
        std::thread::sleep(std::time::Duration::from_millis(ms.into()));
        Ok(())
    }

    fn chime(&self, _: &Context<'_>, _: &Output<u32>) -> Called<()> {
        Ok(())
    }
}

/// A server with a purse under a root, a rock, and a root that is called as a service is.
struct World {
    _dir: tempfile::TempDir,
    server: Server,
    purse: String,
    rock: String,
}

impl World {
    fn start() -> World {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::builder(dir.path()).listen("127.0.0.1:0").methods(<Purse as Account>::METHODS);
        let server = server.methods(<Purse as Door>::METHODS).service(Bell::serve(Silent)).start().unwrap();
        let client = Client::connect(&server.addresses()[0]).unwrap();
        let (purse, rock) = client
            .run(|tx| {
                let purse = tx.create(&Purse { cents: 100 })?;
                let rock = tx.create(&Rock { grams: 7 })?;
                tx.set_root("purse", purse)?;
                tx.set_root("Bell", purse)?;
                Ok((purse.oref().to_string(), rock.oref().to_string()))
            })
            .unwrap();
        client.close().unwrap();
        World { _dir: dir, server, purse, rock }
    }

    fn call(&self, args: &[&str]) -> std::process::Output {
        let address = self.server.addresses()[0].to_string();
        tercel(&[&["call"], args, &["--addr", &address]].concat())
    }

    /// The output of a call that must fail, with its exit code.
    fn wrong(&self, args: &[&str], code: i32) -> String {
        let output = self.call(args);
        assert_eq!(output.status.code(), Some(code), "{}", String::from_utf8_lossy(&output.stderr));
        in_one_line(&err(&output))
    }

    fn json(&self, args: &[&str]) -> Value {
        serde_json::from_str(&out(&self.call(&[args, &["--json"]].concat()))).unwrap()
    }
}

#[test]
fn method_is_called_by_root_and_by_number() {
    let world = World::start();
    assert_eq!(out(&world.call(&["purse", "balance"])), "100\n");
    assert_eq!(world.json(&[&world.purse, "balance"]), json!({ "gives": 100 }));
    let pay = format!(r#"{{"cents": 30, "to": "{}"}}"#, world.purse);
    assert_eq!(out(&world.call(&["purse", "pay", &pay])), "70\n");
    assert_eq!(out(&world.call(&["root:Bell", "Account.pay", "[null, 1]"])), "69\n");
    assert_eq!(out(&world.call(&["purse", "Door.close"])), "");
    assert_eq!(out(&world.call(&["purse", "balance", "{}"])), "69\n");
    // More than a command line's argument may be, in one field.
    let long = format!(r#"["{}"]"#, "x".repeat(100_000));
    assert_eq!(out(&world.call(&["purse", "length", &long])), "100000\n");
}

#[test]
fn values_of_every_type_go_there_and_back() {
    let world = World::start();
    let every = json!({
        "small": -128, "large": u64::MAX, "real": 0.5, "yes": true, "text": "grün", "bytes": "00ff",
        "none": null, "some": "x", "numbers": (0..700).collect::<Vec<u16>>(), "words": ["", "b"],
        "purse": world.purse, "colour": { "Mixed": { "red": 1, "blue": 2 } }, "colours": ["Red", { "Grey": 3 }],
    });
    let given = world.json(&["purse", "echo", &json!([every]).to_string()]);
    assert_eq!(given, json!({ "gives": every }));
    let mut wrong = every;
    wrong["colours"][1] = json!({ "Grey": 256 });
    let text = world.wrong(&["purse", "echo", &json!({ "of": wrong }).to_string()], 2);
    assert!(text.contains("`of.colours[1].Grey`: 256 is given where a whole number from 0 to 255"), "{text}");
}

#[test]
fn error_of_a_method_is_printed_with_its_fields() {
    let world = World::start();
    let pay = [&world.purse, "pay", "[null, 150]"];
    let text = world.wrong(&pay, 1);
    assert!(text.contains("`pay` has failed with Overdrawn: short 50, why \"it is empty\""), "{text}");
    let output = world.call(&[&pay[..], &["--json"]].concat());
    assert_eq!(output.status.code(), Some(1));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said, json!({ "error": "Overdrawn", "fails": { "short": 50, "why": "it is empty" } }));
}

#[test]
fn procedure_of_a_service_is_called() {
    let world = World::start();
    assert_eq!(out(&world.call(&["service:Bell", "names", r#"["x"]"#])), "xa\nxb\n");
    assert_eq!(world.json(&["service:Bell", "ring", "[3]"]), json!({ "gives": null }));
    assert!(world.wrong(&["service:Bell", "names", r#"["grey"]"#], 1).contains("Colour: Grey 9"));
    assert!(world.wrong(&["service:Bell", "crack"], 1).contains("has panicked at the server"));
}

#[test]
fn program_is_told_whether_a_call_may_have_been_executed() {
    let world = World::start();
    for (args, executed, code) in [
        (&["service:Bell", "nap", "[3000]", "--within", "100ms"][..], "unknown", 4),
        (&["service:Bell", "crack"], "in part", 1),
        (&["purse", "close", "--within", "2s"], "no", 2),
        (&["purse", "pay", "[]"], "no", 2),
        (&["purse", "Door.close", "--within", "2s"], "", 0),
    ] {
        let output = world.call(&[args, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", err(&output));
        if !executed.is_empty() {
            let said: Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(said["executed"], json!(executed));
            assert!(!said["says"].as_str().unwrap().is_empty());
        }
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let down = tercel(&["call", "purse", "balance", "--json", "--addr", &free]);
    let said: Value = serde_json::from_slice(&down.stdout).unwrap();
    assert_eq!((&said["executed"], down.status.code()), (&json!("no"), Some(1)));
    assert!(world.wrong(&["purse", "balance", "--within", "2"], 2).contains("is no time: give one such as"));
}

#[test]
fn unknown_and_ambiguous_names_are_told_with_those_that_are_there() {
    let world = World::start();
    let text = world.wrong(&["Bell", "ring", "[1]"], 2);
    assert!(text.contains("root:Bell or service:Bell"), "{text}");
    let text = world.wrong(&["purse", "close"], 2);
    assert!(text.contains("Account.close or Door.close"), "{text}");
    let text = world.wrong(&["nothing", "close"], 1);
    assert!(text.contains("roots: Bell, purse; services: Bell"), "{text}");
    let text = world.wrong(&["service:purse", "close"], 1);
    assert!(text.contains("there is no service `purse`"), "{text}");
    let text = world.wrong(&["purse", "open"], 1);
    assert!(text.contains("no method `open`") && text.contains("pay(to: Ref<Purse>, cents: u16)"), "{text}");
    let text = world.wrong(&["purse", "Gate.close"], 1);
    assert!(text.contains("interfaces: Account, Door"), "{text}");
    let text = world.wrong(&[&world.rock, "balance"], 1);
    assert!(text.contains("no methods of class `Rock`") && text.contains("Purse"), "{text}");
    assert!(text.contains("start the program that has those of `Rock`"), "{text}");
    let text = world.wrong(&["4000.1", "balance"], 1);
    assert!(text.contains("4000.1 was not found") && text.contains("lists the roots"), "{text}");
    assert!(world.wrong(&["service:Bell", "chime"], 1).contains("`chime` of service `Bell` has streams"));
    assert!(world.wrong(&["1.600", "balance"], 2).contains("out of range"));
}

#[test]
fn wrong_arguments_are_told_with_what_the_method_takes() {
    let world = World::start();
    for (args, part) in [
        ("[null]", "1 given where 2 values are wanted"),
        ("[null, 70000]", "`cents`: 70000 is given where a whole number from 0 to 65535"),
        ("[null, 1.5]", "1.5 is given where"),
        (r#"["purse", 1]"#, "a reference is PAGE.SLOT"),
        (r#"{"cents": 1}"#, "`to` is missing"),
        (r#"{"cents": 1, "to": null, "for": 1}"#, "there is no `for`"),
        ("[null, 1", "no JSON"),
        ("[purse, 1]", "texts need quotes"),
        ("7", "neither a JSON object nor an array"),
    ] {
        let text = world.wrong(&["purse", "pay", args], 2);
        assert!(text.contains(part) && text.contains("pay(to: Ref<Purse>, cents: u16)"), "{args}: {text}");
    }
    for (bare, quoted) in [("Annie", r#"'"Annie"'"#), ("it's", r#"'"it'\''s"'"#), ("tr", r#"'"tr"'"#)] {
        let text = world.wrong(&["purse", "length", bare], 2);
        assert!(text.contains(&format!("needs quotes of its own: {quoted}")), "{text}");
    }
    assert!(world.wrong(&["purse", "pay"], 2).contains("`to` is missing"));
    assert!(world.wrong(&["purse", "balance", "[1]"], 2).contains("there are none"));
    assert_eq!(out(&world.call(&["purse", "balance"])), "100\n");
}

#[test]
fn stock_server_runs_the_methods_of_marks() {
    let dir = tempfile::tempdir().unwrap();
    let serving = Serving::start(&dir.path().display().to_string());
    let client = Client::connect(serving.1.as_str()).unwrap();
    let mark = client.run(|tx| tx.create(&Mark { package: Ref::NULL, advisory: 1 })).unwrap();
    let mark = mark.oref().to_string();
    let call = |method: &[&str]| out(&tercel(&[&["call", &mark], method, &["--addr", &serving.1]].concat()));
    assert_eq!(call(&["set_advisory", "7"]), "");
    assert!(call(&["seen"]).starts_with("advisory: 7\n"));
    let below = in_one_line(&err(&tercel(&["call", &mark, "set_advisory", "-5", "--addr", &serving.1])));
    assert!(below.contains("-5 is given where a whole number from 0 to 4294967295"), "{below}");
    assert_eq!(call(&["set_advisory", "[4294967295]"]), "");
    assert_eq!(call(&["seen"]), format!("advisory: 4294967295\nprocess: {}\n", serving.0.id()));
    client.close().unwrap();
}

#[test]
fn server_that_is_down_is_told_without_options_that_are_not_there() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (args, option) in [
        (vec!["call", "purse", "balance", "--addr", &free], "--addr ADDR"),
        (vec!["demo", "--addr", &free], "--addr ADDR"),
        (vec!["inspect", "--interfaces", "--server", &free], "--server ADDR"),
    ] {
        let output = tercel(&args);
        assert_eq!(output.status.code(), Some(1));
        let text = in_one_line(&err(&output));
        let next =
            format!("start a server with `tercel serve --data DIR`, or name another one with {option}");
        let program = env!("CARGO_BIN_EXE_tercel");
        assert!(text.ends_with(&next.replace("`tercel", &format!("`{program}"))), "{text}");
        assert!(text.contains("not available"), "{text}");
    }
}
