//! The reason why a request of a bucket was not granted, and the words for its reader.
//!
//! The reason is noted where it is known, below the library that makes the requests, and read where the call
//! ends. The invariant: of an answer from elsewhere a code and a sentence are shown, bounded and without
//! secrets; never its body, in which some stores repeat the request's headers.

use std::cell::RefCell;

/// The reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Trouble {
    /// The keys cannot be read.
    Keys(String),
    /// The other end has not proven its name, or the connection may not be plain.
    Distrust(String),
    /// No answer came.
    NoAnswer(String),
    /// An answer that refuses.
    Answer(Answer),
}

/// An answer that refuses.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Answer {
    pub status: u16,
    /// The code in the answer's body, such as `NoSuchKey`; empty if it has none.
    pub code: String,
    pub message: String,
    /// The region of the bucket, if the answer says it.
    pub region: Option<String>,
}

/// The meaning of a failure for the caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The same request will be refused again.
    Refused(String),
    /// The same request may succeed later.
    Again(String),
}

tokio::task_local! {
    /// The trouble of the last request of a call.
    static LAST: RefCell<Option<Trouble>>;
}

/// Runs a call. Gives the trouble of its last request with its result.
pub(super) async fn noted<T>(call: impl Future<Output = T>) -> (T, Option<Trouble>) {
    LAST.scope(RefCell::default(), async {
        let result = call.await;
        (result, LAST.with(RefCell::take))
    })
    .await
}

/// Notes the trouble of a request.
pub(super) fn note(trouble: Trouble) {
    let _ = LAST.try_with(|last| last.replace(Some(trouble)));
}

/// Forgets the trouble of an earlier request.
pub(super) fn clear() {
    let _ = LAST.try_with(RefCell::take);
}

/// Says whether the last request found that an object is not there, and everything else in order.
pub(super) fn is_no_such_object() -> bool {
    let is_it = |last: &RefCell<Option<Trouble>>| match &*last.borrow() {
        Some(Trouble::Answer(answer)) => answer.is_no_such_object(),
        _ => false,
    };
    LAST.try_with(is_it).unwrap_or(false)
}

impl Answer {
    /// Reads an answer. Its body is XML with a code and a message, or something else.
    pub(super) fn read(status: u16, region: Option<&str>, body: &[u8]) -> Answer {
        let body = String::from_utf8_lossy(body);
        let element = |name: &str| {
            let (_, rest) = body.split_once(&format!("<{name}>"))?;
            Some(unescaped(rest.split_once('<')?.0))
        };
        Answer {
            status,
            code: element("Code").unwrap_or_default(),
            message: element("Message").unwrap_or_default(),
            region: region.map(String::from).or_else(|| element("Region")),
        }
    }

    fn is_no_such_object(&self) -> bool {
        self.status == 404 && matches!(self.code.as_str(), "" | "NoSuchKey" | "NotFound")
    }

    fn text(&self, scrub: &impl Fn(&str) -> String) -> String {
        let text = match (self.code.as_str(), self.message.as_str()) {
            ("", "") => format!("it answers {}", self.status),
            (code, "") => format!("it answers {} {code}", self.status),
            (code, message) => format!("it answers {} {code}: {message}", self.status),
        };
        // Behind a semicolon stands what to do, which a service does not know.
        plain(&scrub(&text)).replace(';', ",")
    }
}

/// The text of an element of XML.
fn unescaped(text: &str) -> String {
    let pairs =
        [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&#34;", "\""), ("&apos;", "'"), ("&#39;", "'")];
    pairs
        .iter()
        .fold(text.to_string(), |text, (escaped, sign)| text.replace(escaped, sign))
        .replace("&amp;", "&")
}

/// A text from elsewhere, without control characters and not longer than a sentence.
pub(super) fn plain(text: &str) -> String {
    let text: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_CHARS_MAX).collect();
    text.trim().trim_end_matches('.').into()
}

/// Judges a failure.
pub(super) fn judge(trouble: &Trouble, bucket: &str, keys: &str, scrub: impl Fn(&str) -> String) -> Verdict {
    let answer = match trouble {
        Trouble::Keys(why) => return Verdict::Refused(why.clone()),
        Trouble::Distrust(why) => return Verdict::Refused(plain(&scrub(why))),
        Trouble::NoAnswer(why) => return Verdict::Again(plain(&scrub(why))),
        Trouble::Answer(answer) => answer,
    };
    let text = answer.text(&scrub);
    let refused = |next: String| Verdict::Refused(format!("{text}; {next}"));
    match (answer.status, answer.code.as_str()) {
        (_, "InvalidAccessKeyId") => refused(format!("it does not know the access key of {keys}")),
        (_, "SignatureDoesNotMatch") => {
            refused(format!("the secret key of {keys} is not that of the access key"))
        }
        (_, "ExpiredToken" | "ExpiredTokenException" | "TokenRefreshRequired" | "InvalidToken") => {
            refused(format!("renew the session token of {keys}"))
        }
        (_, "RequestTimeTooSkewed") => refused("set the clock of this machine".into()),
        (_, "NoSuchBucket") => refused(format!("make the bucket {bucket}, or name another one")),
        (_, "AuthorizationHeaderMalformed" | "PermanentRedirect" | "IllegalLocationConstraintException")
        | (301 | 302 | 307 | 308, _) => match &answer.region {
            Some(region) => {
                refused(format!("set AWS_REGION to {}, where the bucket is", plain(&scrub(region))))
            }
            None => refused("set AWS_REGION to the bucket's region, or mend AWS_ENDPOINT_URL".into()),
        },
        (401 | 403, _) => refused(format!(
            "let the keys of {keys} read, write, remove and list objects in the bucket {bucket}"
        )),
        (501, _) => {
            refused("an archive needs a store that writes under conditions (If-Match, If-None-Match)".into())
        }
        (404, _) => refused(format!(
            "see that AWS_ENDPOINT_URL and {keys} are right, and the bucket {bucket} is there"
        )),
        (408 | 409 | 412 | 425 | 429 | 500.., _) | (_, "RequestTimeout" | "IncompleteBody") => {
            Verdict::Again(text)
        }
        (..=399, _) => Verdict::Again(text),
        _ => refused("mend AWS_ENDPOINT_URL if that is no S3 service".into()),
    }
}

/// Signs of a text from elsewhere.
const TEXT_CHARS_MAX: usize = 240;

#[cfg(test)]
mod tests {
    use super::*;

    fn body(code: &str) -> Vec<u8> {
        format!("<?xml?><Error><Code>{code}</Code><Message>Well.</Message></Error>").into_bytes()
    }

    fn verdict(status: u16, code: &str) -> Verdict {
        let trouble = Trouble::Answer(Answer::read(status, None, &body(code)));
        judge(&trouble, "backups", "the file", str::to_string)
    }

    #[test]
    fn refusals_say_who_must_act() {
        for (status, code, says) in [
            (403, "InvalidAccessKeyId", "does not know the access key of the file"),
            (403, "SignatureDoesNotMatch", "secret key of the file"),
            (403, "AccessDenied", "let the keys of the file read, write"),
            (403, "RequestTimeTooSkewed", "clock"),
            (400, "ExpiredToken", "renew the session token"),
            (404, "NoSuchBucket", "make the bucket backups"),
            (301, "PermanentRedirect", "AWS_REGION"),
            (501, "NotImplemented", "If-Match"),
            (400, "Whatever", "400 Whatever: Well"),
        ] {
            let Verdict::Refused(why) = verdict(status, code) else {
                panic!("{status} {code} is tried again")
            };
            assert!(why.contains(says), "{why}");
        }
    }

    #[test]
    fn faults_are_tried_again() {
        for (status, code) in
            [(500, "InternalError"), (503, "SlowDown"), (429, ""), (409, "OperationAborted")]
        {
            assert!(matches!(verdict(status, code), Verdict::Again(_)), "{status} {code}");
        }
    }

    #[test]
    fn answer_is_shown_bounded_and_plain() {
        let escaped = Answer::read(400, None, b"<Message>&#34;a&quot; &amp;lt; &lt;b&gt;</Message>");
        assert_eq!(escaped.message, "\"a\" &lt; <b>");
        let long = format!("<Code>A\x1b[2Jb</Code><Message>{}</Message>", "x".repeat(9_000));
        let answer = Answer::read(500, None, long.as_bytes());
        let text = answer.text(&|text: &str| text.replace('b', "*"));
        assert!(text.starts_with("it answers 500 A [2J*: xxx") && text.len() <= TEXT_CHARS_MAX, "{text}");
        assert_eq!(Answer::read(502, None, b"\xff<html>").text(&str::to_string), "it answers 502");
    }
}
