//! The methods of a server, shown.

use tercel::rpc::{Callback, Input, Output};
use tercel::{Called, Context, List, Obj, Object, Record, Ref, Server, Text, interface, service};

use crate::common::{err, out, tercel};

#[interface]
trait Account {
    #[read]
    fn balance(&self) -> i64;
    fn pay(&mut self, to: Ref<Purse>, cents: i64, why: &str) -> Result<i64, Overdrawn>;
    fn tag(&mut self, tags: List<Text>);
    #[read]
    fn colours(&self) -> List<Colour>;
}

#[derive(Object)]
struct Purse {
    cents: i64,
}

#[derive(Record, Debug)]
struct Overdrawn {
    short: i64,
}

#[derive(Record, Debug, Clone)]
enum Colour {
    Red,
    Grey(u8),
    Mixed { shade: Shade },
}

#[derive(Record, Debug, Clone)]
struct Shade {
    blue: Option<u8>,
}

impl Account for Purse {
    fn colours(_: &Obj<Purse>) -> Called<List<Colour>> {
        Ok([Colour::Red, Colour::Grey(1), Colour::Mixed { shade: Shade { blue: None } }].into())
    }

    fn balance(this: &Obj<Purse>) -> Called<i64> {
        Ok(this.cents())
    }

    fn pay(this: &Obj<Purse>, _: Ref<Purse>, cents: i64, _: &str) -> Called<i64, Overdrawn> {
        if this.cents() < cents {
            Err(Overdrawn { short: cents - this.cents() }.into())
        } else {
            Ok(this.cents())
        }
    }

    fn tag(_: &Obj<Purse>, _: List<Text>) -> Called<()> {
        Ok(())
    }
}

#[service]
trait Bell {
    #[one_way]
    fn ring(&self, times: u8);
    #[read]
    #[slow]
    fn rung(&self) -> u64;
    #[slow]
    fn chime(&self, tones: &Output<u32>, keys: &Input<Text>);
    #[slow]
    fn tune(&self, of: u8, is_right: &Callback<u32, bool>);
}

struct Silent;

impl Bell for Silent {
    fn ring(&self, _: &Context<'_>, _: u8) {}

    fn rung(&self, _: &Context<'_>) -> Called<u64> {
        Ok(0)
    }

    fn chime(&self, _: &Context<'_>, _: &Output<u32>, _: &Input<Text>) -> Called<()> {
        Ok(())
    }

    fn tune(&self, _: &Context<'_>, _: u8, _: &Callback<u32, bool>) -> Called<()> {
        Ok(())
    }
}

#[test]
fn methods_of_a_server_are_shown_with_what_they_take_and_give() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::builder(dir.path()).listen("127.0.0.1:0").methods(Purse::METHODS);
    let server = server.service(Bell::serve(Silent)).start().unwrap();
    let address = server.addresses()[0].to_string();
    let text = out(&tercel(&["inspect", "--interfaces", "--server", &address]));
    let wanted = "\
Account for Purse
  #[read] balance() -> i64
  pay(to: Ref<Purse>, cents: i64, why: Text) -> Result<i64, Overdrawn>
  tag(tags: List<Text>)
  #[read] colours() -> List<Colour>
  struct Overdrawn { short: i64 }
  enum Colour { Red, Grey(u8), Mixed { shade: Shade } }
  struct Shade { blue: Option<u8> }
service Bell
  #[one_way] ring(times: u8)
  #[read] #[slow] rung() -> u64
  #[slow] chime(&Output<u32>, &Input<Text>)
  #[slow] tune(of: u8, &Callback<u32, bool>)
";
    assert_eq!(text, wanted);
    let json = out(&tercel(&["inspect", "--interfaces", "--json", "--server", &address]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let pay = &json["interfaces"][0]["methods"][1];
    assert_eq!(
        (&pay["name"], &pay["reads"], &pay["fails"]),
        (&"pay".into(), &false.into(), &"Overdrawn".into())
    );
    assert_eq!(pay["takes"][1], serde_json::json!({ "name": "cents", "type": "i64" }));
    let types = &json["interfaces"][0]["types"];
    assert_eq!(
        types[1]["variants"][1],
        serde_json::json!({ "name": "Grey", "fields": [{ "name": "0", "type": "u8" }] })
    );
    assert_eq!(types[2]["fields"][0], serde_json::json!({ "name": "blue", "type": "Option<u8>" }));
    let bell = &json["interfaces"][1];
    assert_eq!((&bell["service"], &bell["methods"][0]["one_way"]), (&true.into(), &true.into()));
    let chime = &bell["methods"][2];
    assert_eq!((&chime["input"], &chime["output"]), (&"Text".into(), &"u32".into()));
    server.stop().unwrap();

    let stock = Server::builder(dir.path()).listen("127.0.0.1:0").start().unwrap();
    let address = stock.addresses()[0].to_string();
    let text = out(&tercel(&["inspect", "--interfaces", "--server", &address]));
    assert!(text.contains("runs no methods"), "{text}");
    assert!(
        err(&tercel(&["inspect", "purse", "--interfaces", "--server", &address])).contains("cannot be used")
    );
}
