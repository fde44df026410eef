//! Calls of methods and procedures, as the servers describe them.

use std::sync::Arc;
use std::time::Instant;

use hyper::StatusCode;
use serde_json::{Value, json};
use tercel::tools::wire::interface::{Interface, Method, Mode};
use tercel::tools::{Described, OTHER_REQUEST, Reply, returned_under};
use tercel::{Error, Isolation, Oref};

use crate::answer::{self, Answer, Content, refused};
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
            // Under a key the method may have been executed before, and its result not be readable any more.
            Error::Failed(_) if !self.object.is_null() && self.key.is_empty() => Wrong::Method(e),
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
        let mut ready = match (asked.key()?, self.ready(asked, None)) {
            (None, ready) => ready?,
            (Some(key), Err(wrong)) if asked.route == Route::Method => return self.kept(key, asked, wrong),
            (Some(_), Ok(ready)) if ready.method().reads || !ready.key.is_empty() => ready,
            (Some(key), ready) => return self.call_once(key, asked, ready),
        };
        let mut ended = self.call_ready(&ready);
        if let Err(Error::Schema(_)) = ended {
            // The servers may offer something else since they were asked.
            ready = self.ready(asked, Some(begun))?;
            ended = self.call_ready(&ready);
        }
        match ended {
            Ok(reply) => Ok(self.told(&ready, reply)?),
            // Nothing of an answer is in doubt: the same again has one effect.
            Err(Error::Unknown { .. }) if !ready.key.is_empty() => {
                let next = "send the same again under this key: it has one effect. If no answer comes at all, `tercel stat` tells \
                            what the servers wait for, such as a transaction that another space has not settled";
                Ok(refused(StatusCode::SERVICE_UNAVAILABLE, "no answer came in time", next))
            }
            Err(Error::Invalid(text)) if text == OTHER_REQUEST => {
                let next = "send what it stood for; a root that leads to another object since is another request, too: look \
                            before you send it with a new key";
                Ok(refused(StatusCode::UNPROCESSABLE_ENTITY, &text, next))
            }
            Err(e) => Err(ready.wrong(e)),
        }
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
        let of = &interface.methods[method];
        if of.mode == Mode::Once && asked.key()?.is_none() {
            let what = format!("`{}` is called with a key, under which it has one effect", asked.path[3]);
            return Err(Wrong::invalid(what, "send a header `Idempotency-Key`".into()));
        }
        let takes = arguments(of, Some(text).filter(|text| !text.trim().is_empty()))?;
        // Such a key is the server's, which keeps the answer with the effect.
        let is_kept_there = of.mode == Mode::Once || target.object.is_some() && !of.reads;
        let key =
            asked.key()?.filter(|_| is_kept_there).map(|key| self.own_key(key)).unwrap_or_default().into();
        let object = target.object.unwrap_or(Oref::NULL);
        Ok(Ready { interface: interface.clone(), method, object, key, takes })
    }

    pub fn call_ready(&self, ready: &Ready) -> Result<Option<Reply>, Error> {
        let Ready { interface, method, object, key, takes } = ready;
        let call = Described { interface, method: *method, object: *object, key, timeout: PATIENCE, takes };
        tercel::tools::call(&self.client, &call)
    }

    /// The answer that a method has left under a key, if its object cannot be found any more; else what is
    /// wrong. A root that leads nowhere is not compared: only the method and its arguments are.
    fn kept(&self, key: &str, asked: &Asked, wrong: Wrong) -> Result<Answer, Wrong> {
        let (Wrong::Absent(_) | Wrong::Space(Error::NotFound(_)), Ok(text)) =
            (&wrong, std::str::from_utf8(&asked.body))
        else {
            return Err(wrong);
        };
        let text = Some(text).filter(|text| !text.trim().is_empty());
        let (of, name) =
            asked.path[3].rsplit_once('.').map_or((None, &*asked.path[3]), |(of, bare)| (Some(of), bare));
        let offered = self.offered.get(&self.client, None)?;
        let mut candidates = Vec::new();
        for interface in offered.iter().filter(|i| !i.is_service() && of.is_none_or(|of| i.name == of)) {
            if let Some(number) = interface.methods.iter().position(|method| method.name == name)
                && let Ok(takes) = arguments(&interface.methods[number], text)
            {
                candidates.push((interface, number, takes));
            }
        }
        let named: Option<Oref> = asked.path[2].parse().ok();
        let transaction = self.client.transaction().isolation(Isolation::Strict).timeout(PATIENCE);
        let found = transaction.run(|tx| {
            for (interface, number, takes) in &candidates {
                let returned = returned_under(tx, self.own_key(key).as_bytes(), (interface, *number), takes)?;
                if let Some((object, reply)) = returned
                    && named.is_none_or(|named| named == object)
                {
                    return Ok(Some((&interface.methods[*number], reply)));
                }
            }
            Ok(None)
        });
        match found? {
            Some((method, reply)) => Ok(told(method, Some(Reply::Returned(reply)))?),
            None => Err(wrong),
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
