//! The answers at each route.

use hyper::StatusCode;
use hyper::header::{ALLOW, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};

use crate::answer::{self, Answer, of_type, refused, with};
use crate::asked::Asked;
use crate::gate::Gate;
use crate::json::call::{Wrong, cut};
use crate::route::Route;

impl Gate {
    /// The answer, whatever it takes.
    pub fn answer(&self, asked: &Asked) -> Answer {
        if asked.route == Route::None {
            let what = format!("there is nothing at /{}", cut(&asked.path.join("/")));
            return refused(StatusCode::NOT_FOUND, &what, "GET /openapi.json lists what there is");
        }
        if !asked.is_allowed {
            let method = asked.route.method();
            let what = format!("{} takes {method}", asked.route.name());
            let answer = refused(StatusCode::METHOD_NOT_ALLOWED, &what, &format!("send it as {method}"));
            return with(answer, ALLOW, method.as_str());
        }
        let answer = match asked.route {
            Route::Health => self.health(),
            Route::Status => {
                self.status().map(|status| answer::json(StatusCode::OK, &status)).map_err(Wrong::from)
            }
            Route::Metrics => Ok(self.metrics(asked)),
            Route::Table => self.table(asked),
            Route::Map => self.map(asked),
            Route::Services => self.services(),
            Route::Method | Route::Procedure => self.call(asked),
            Route::Console => Ok(console()),
            Route::OpenApi => self.openapi(),
            Route::Object | Route::Roots | Route::Watch | Route::None => {
                unreachable!("it was answered before")
            }
        };
        answer.unwrap_or_else(|why| answer::wrong(&why))
    }
}

fn console() -> Answer {
    let page = of_type(StatusCode::OK, "text/html; charset=utf-8", CONSOLE);
    let page = with(page, CONTENT_SECURITY_POLICY, POLICY);
    with(page, X_CONTENT_TYPE_OPTIONS, "nosniff")
}

/// The policy of the console: its own scripts and styles, and no page around it.
const POLICY: &str = "default-src 'self' 'unsafe-inline'; img-src data:; frame-ancestors 'none'";

/// The console: one page, which fetches nothing from elsewhere.
const CONSOLE: &str = include_str!("console.html");
