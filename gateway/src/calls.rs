//! Calls of methods and procedures, as the servers describe them.

use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use serde_json::{Value, json};
use tercel::tools::wire::interface::{Interface, Method, Mode};
use tercel::tools::{Described, Reply};
use tercel::{Error, Oref};

use crate::answer::{self, Answer, Content};
use crate::asked::Asked;
use crate::gate::{Gate, PATIENCE, located};
use crate::json::call::{Target, Wrong, arguments, only, to_json};
use crate::room::ANSWER_BYTES_MAX;
use crate::route::Route;

/// A call that can be made.
pub struct Ready {
    interface: Arc<Interface>,
    method: usize,
    object: Oref,
    /// The key of a method that writes, or of a procedure that is `#[once]`; empty for any other call.
    key: Vec<u8>,
    takes: Vec<u8>,
}

impl Ready {
    fn method(&self) -> &Method {
        &self.interface.methods[self.method]
    }

    /// An error of the call.
    pub fn wrong(&self, e: Error) -> Wrong {
        match e {
            Error::Failed(_) if !self.object.is_null() => Wrong::Method(e),
            e => Wrong::Space(e),
        }
    }
}

impl Gate {
    /// The interfaces of the servers.
    pub fn services(&self) -> Result<Answer, Wrong> {
        let all = self.offered.get(&self.client, None)?;
        let all: Vec<Value> = all.iter().map(|i| crate::json::interfaces::interface(i)).collect();
        Ok(answer::json(StatusCode::OK, &json!({ "interfaces": all })))
    }

    /// Calls what is named.
    pub fn call(&self, asked: &Asked) -> Result<Answer, Wrong> {
        let begun = Instant::now();
        let (key, ready) = (asked.key()?, self.ready(asked, None));
        let ready = match (key, ready) {
            (None, ready) => ready?,
            (Some(_), Ok(ready)) if ready.method().reads => ready,
            (Some(key), Ok(ready)) if ready.method().mode == Mode::Once => {
                // The procedure keeps its answer with its effect: nothing is kept here.
                let ready = Ready { key: key.into(), ..ready };
                return self.call_keyed(&ready);
            }
            (Some(key), ready) => return self.call_once(key, asked, ready),
        };
        let ended = match self.call_ready(&ready) {
            // The servers may offer something else since they were asked.
            Err(Error::Schema(_)) => self.call_ready(&self.ready(asked, Some(begun))?),
            ended => ended,
        };
        let reply = ended.map_err(|e| ready.wrong(e))?;
        Ok(self.told(&ready, reply)?)
    }

    pub fn ready(&self, asked: &Asked, since: Option<Instant>) -> Result<Ready, Wrong> {
        let offered = self.offered.get(&self.client, since)?;
        let name = &asked.path[2];
        let target = match asked.route {
            Route::Procedure => Target::of_service(offered, name)?,
            _ => {
                let oref = self.client.run(|tx| located(tx, name))?;
                Target::of_object(&self.client, offered, oref)?
            }
        };
        let (interface, method) = target.method(&asked.path[3])?;
        let text = std::str::from_utf8(&asked.body)
            .map_err(|_| Wrong::invalid("the body is not UTF-8".into(), "send JSON".into()))?;
        if interface.methods[method].mode == Mode::Once && asked.key()?.is_none() {
            let what = format!("`{}` is called with a key, under which it has one effect", asked.path[3]);
            return Err(Wrong::invalid(what, "send a header `Idempotency-Key`".into()));
        }
        let takes = arguments(&interface.methods[method], Some(text).filter(|text| !text.trim().is_empty()))?;
        let object = target.object.unwrap_or(Oref::NULL);
        Ok(Ready { interface: interface.clone(), method, object, key: Vec::new(), takes })
    }

    pub fn call_ready(&self, ready: &Ready) -> Result<Option<Reply>, Error> {
        let Ready { interface, method, object, key, takes } = ready;
        let call = Described { interface, method: *method, object: *object, key, timeout: PATIENCE, takes };
        tercel::tools::call(&self.client, &call)
    }

    /// Calls a procedure under its key. Nothing of an answer is in doubt: the same again has one effect.
    fn call_keyed(&self, ready: &Ready) -> Result<Answer, Wrong> {
        match self.call_ready(ready) {
            Ok(reply) => Ok(self.told(ready, reply)?),
            Err(Error::Unknown { what, .. }) => {
                Err(Error::Unavailable(format!("no answer came in time: {what}")).into())
            }
            Err(e) => Err(e.into()),
        }
    }

    /// The answer to a call that has come to its end.
    pub fn told(&self, ready: &Ready, reply: Option<Reply>) -> Result<Answer, Error> {
        let is_large = match &reply {
            Some(Reply::Returned(bytes) | Reply::Failed(bytes)) => bytes.len() > LARGE_BYTES,
            None => false,
        };
        let _alone = is_large.then(|| self.large_reply.lock());
        let answer = told(ready.method(), reply)?;
        match answer.body() {
            Content::Whole(Some(body)) if body.len() > ANSWER_BYTES_MAX => {
                let what = format!(
                    "the answer has {} bytes, and {ANSWER_BYTES_MAX} are all that one has",
                    body.len()
                );
                let next = "it was executed: read what it changed, or call what gives less at once";
                let body = json!({ "error": what, "next": next, "executed": "yes" });
                Ok(answer::json(StatusCode::INTERNAL_SERVER_ERROR, &body))
            }
            _ => Ok(answer),
        }
    }
}

/// A reply beyond is large: as values it has many times its bytes.
const LARGE_BYTES: usize = 1 << 20;

fn told(method: &Method, reply: Option<Reply>) -> Result<Answer, Error> {
    Ok(match reply {
        None => answer::json(StatusCode::ACCEPTED, &json!({ "gives": null })),
        Some(Reply::Returned(bytes)) => {
            let gives = only(&method.gives, &bytes)?.map(to_json);
            answer::json(StatusCode::OK, &json!({ "gives": gives }))
        }
        Some(Reply::Failed(bytes)) => {
            let fails = only(&method.fails, &bytes)?.map(to_json);
            let name = method.fails.fields().first().map_or_else(String::new, |f| f.shape.to_string());
            let next = "the method failed by its own decision, and changed nothing if it is of an object";
            let body = json!({ "error": name, "fails": fails, "next": next });
            answer::json(StatusCode::UNPROCESSABLE_ENTITY, &body)
        }
    })
}
