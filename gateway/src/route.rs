//! The routes.

use hyper::Method;

/// The root of the keys of calls, which is no object of a program.
pub const KEYS: &str = "gateway.keys";

/// A route, as it is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Route {
    Console,
    OpenApi,
    Health,
    Status,
    Metrics,
    Roots,
    Services,
    Object,
    Watch,
    Table,
    Map,
    Method,
    Procedure,
    None,
}

impl Route {
    /// All of them in their order, with their paths.
    pub const ALL: [(Route, &'static str); 14] = [
        (Route::Console, "/"),
        (Route::OpenApi, "/openapi.json"),
        (Route::Health, "/v1/health"),
        (Route::Status, "/v1/status"),
        (Route::Metrics, "/metrics"),
        (Route::Roots, "/v1/roots"),
        (Route::Services, "/v1/services"),
        (Route::Object, "/v1/objects/{object}"),
        (Route::Watch, "/v1/watch/{object}"),
        (Route::Table, "/v1/tables/{table}"),
        (Route::Map, "/v1/maps/{map}"),
        (Route::Method, "/v1/objects/{object}/{method}"),
        (Route::Procedure, "/v1/services/{service}/{procedure}"),
        (Route::None, "none"),
    ];

    pub fn name(self) -> &'static str {
        Route::ALL[self as usize].1
    }

    /// The HTTP method that it takes.
    pub fn method(self) -> Method {
        match self {
            Route::Method | Route::Procedure => Method::POST,
            _ => Method::GET,
        }
    }

    /// Says whether it tells how the servers are, in a few bytes.
    pub fn is_sign(self) -> bool {
        matches!(self, Route::Health | Route::Metrics)
    }

    /// The route of the parts of a path.
    pub fn of(path: &[String]) -> Route {
        let fits = |name: &str| {
            let mut parts = name.split('/').skip(1);
            let is_prefix =
                path.iter().all(|part| parts.next().is_some_and(|p| p.starts_with('{') || p == part));
            is_prefix && parts.next().is_none()
        };
        Route::ALL.iter().find(|(_, name)| fits(name)).map_or(Route::None, |(route, _)| *route)
    }
}
