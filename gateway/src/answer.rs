//! Answers requests for pages: checks access, chooses the page, and sets the headers of all
//! responses.

use super::{
    guard::{Guard, Verdict, query_parameter},
    page::{self, Frame},
};
use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    http::{
        StatusCode, Uri,
        header::{self, HeaderName, HeaderValue},
    },
    middleware::{self, Next},
    response::Response,
    routing::get,
};
use sim::report::html::Html;
use std::sync::Arc;
use view::status_cache::{JobDetails, QueryError, StatusCache};

/// The content security policy: pages load nothing from other servers, send nothing to them, and
/// cannot be embedded in other pages.
const CONTENT_POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Static files. They contain no data of the cluster, so they need no token.
const STATIC_FILES: [(&str, &str, &str); 3] = [
    ("/style.css", "text/css; charset=utf-8", include_str!("style.css")),
    ("/live.js", "text/javascript; charset=utf-8", include_str!("live.js")),
    ("/icon.svg", "image/svg+xml", include_str!("icon.svg")),
];

/// The status and contents of a page.
type Page = (StatusCode, Frame);
type Server = State<Arc<WebServer>>;

/// The state of the web server.
pub(super) struct WebServer {
    pub(super) guard: Guard,
    pub(super) status_cache: StatusCache,
}

/// Returns the router of all pages and static files.
pub(super) fn router(server: Arc<WebServer>) -> Router {
    let mut router = Router::new()
        .route("/", get(cluster))
        .route("/nodes", get(nodes))
        .route("/jobs", get(jobs))
        .route("/job/{id}", get(job))
        .route("/task/{id}", get(task))
        .fallback(unknown_page);
    for (path, kind, text) in STATIC_FILES {
        router = router.route(path, get(async move || response(StatusCode::OK, kind, text)));
    }
    router.layer(middleware::from_fn_with_state(server.clone(), check)).with_state(server)
}

/// Checks the access to every page.
async fn check(State(server): Server, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_static = STATIC_FILES.iter().any(|(name, ..)| *name == path);
    match server.guard.judge(request.method(), request.uri(), request.headers(), is_static) {
        Verdict::Allowed => next.run(request).await,
        Verdict::SetCookie { cookie } => set_cookie(path, &cookie),
        Verdict::WrongOrigin => {
            let text = "This server answers only for 127.0.0.1 and localhost, at the port of mrctl web. If you \
                         forward the port with ssh, use the same port number.";
            server.refusal(StatusCode::FORBIDDEN, "Wrong address", text)
        }
        Verdict::NoToken => {
            let text = "Open the address that mrctl web has printed. It contains a token, because other accounts of \
                         this machine can reach this port too. A token is valid once: press Enter where mrctl web \
                         runs to get a new address.";
            server.refusal(StatusCode::FORBIDDEN, "Token required", text)
        }
        Verdict::NotGet => {
            let text = "These pages are read-only. Use the commands of mrctl to change something.";
            let mut answer = server.refusal(StatusCode::METHOD_NOT_ALLOWED, "Read-only", text);
            answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            answer
        }
    }
}

async fn cluster(State(server): Server) -> Response {
    let frame = page::cluster::page(&*server.status_cache.overview().await);
    server.page_response(StatusCode::OK, frame)
}

async fn nodes(State(server): Server) -> Response {
    let frame = page::nodes::page(&*server.status_cache.overview().await);
    server.page_response(StatusCode::OK, frame)
}

async fn jobs(State(server): Server, uri: Uri) -> Response {
    let number = page_number(&uri).unwrap_or(1);
    let frame = page::jobs::page(&*server.status_cache.overview().await, number);
    server.page_response(StatusCode::OK, frame)
}

async fn job(State(server): Server, Path(id): Path<String>, uri: Uri) -> Response {
    let (status, frame) = match &*server.status_cache.job(&id).await {
        Ok(details) => {
            let view = page::tasks::View::new(query_parameter(&uri, "state"), page_number(&uri));
            (StatusCode::OK, page::job::page(details, &view))
        }
        Err(error) => error_page(&id, error),
    };
    server.page_response(status, frame)
}

async fn task(State(server): Server, Path(id): Path<String>, uri: Uri) -> Response {
    let (status, frame) = server.task_page(&id, &uri).await;
    server.page_response(status, frame)
}

async fn unknown_page(State(server): Server) -> Response {
    let text = QueryError::Unknown("There is no such page.".into());
    let (status, frame) = error_page("Page not found", &text);
    server.page_response(status, frame)
}

fn page_number(uri: &Uri) -> Option<usize> {
    query_parameter(uri, "page").and_then(|text| text.parse().ok())
}

impl WebServer {
    /// Returns the page of a task or of one of its attempts.
    async fn task_page(&self, id: &str, uri: &Uri) -> Page {
        let job = id.split('.').next().unwrap_or_default();
        let details: Arc<Result<JobDetails, QueryError>> = self.status_cache.job(job).await;
        let (owner, tasks) = match &*details {
            Ok(JobDetails { job, tasks: Ok(tasks), .. }) => (job, tasks),
            Ok(JobDetails { tasks: Err(error), .. }) | Err(error) => return error_page(id, error),
        };
        // The page of an attempt is the page of its task.
        let Some(task) = tasks.iter().find(|task| task.task == id || task.attempt(id).is_some()) else {
            return error_page(id, &QueryError::Unknown(format!("{job} has no task {id}.")));
        };
        let remembered = details.as_ref().as_ref().is_ok_and(|details| details.past.is_none());
        let wanted = query_parameter(uri, "attempt").or_else(|| (id != task.task).then(|| id.to_owned()));
        let attempt = match wanted {
            Some(wanted) => task.attempt(&wanted),
            None => task.attempts.last(),
        };
        let stderr = query_parameter(uri, "stream").as_deref() != Some("stdout");
        let (why, log) = if remembered {
            let log = async {
                match attempt {
                    Some(attempt) => Some(self.status_cache.log(attempt, stderr).await),
                    None => None,
                }
            };
            let (why, log) = tokio::join!(self.status_cache.why(&task.task), log);
            (Some(why), log)
        } else {
            (None, None)
        };
        let log = attempt.zip(log).map(|(attempt, text)| page::task::Log { attempt, stderr, text });
        (StatusCode::OK, page::task::page(owner, tasks, task, why, log))
    }

    fn refusal(&self, status: StatusCode, title: &str, text: &str) -> Response {
        self.page_response(status, page::message(title, text, false))
    }

    fn page_response(&self, status: StatusCode, frame: Frame) -> Response {
        let user = if self.guard.is_closed() { self.status_cache.user() } else { String::new() };
        // A page that refuses access does not show the name of the user.
        let user = if status == StatusCode::FORBIDDEN { String::new() } else { user };
        let page: Html = frame.render(&user);
        response(status, "text/html; charset=utf-8", page.into_string())
    }
}

/// Returns the page for an error. If a master is unreachable, the page reloads regularly.
fn error_page(what: &str, error: &QueryError) -> Page {
    match error {
        QueryError::Unknown(text) => (StatusCode::NOT_FOUND, page::message(what, text, false)),
        QueryError::Forbidden(text) => (StatusCode::FORBIDDEN, page::message(what, text, false)),
        QueryError::Invalid(text) => (StatusCode::UNPROCESSABLE_ENTITY, page::message(what, text, false)),
        QueryError::Unavailable(text) => (StatusCode::SERVICE_UNAVAILABLE, page::message(what, text, true)),
    }
}

/// Sets the cookie and redirects to the same page without the token in its address.
fn set_cookie(path: &str, cookie: &str) -> Response {
    let mut answer = response(StatusCode::SEE_OTHER, "text/plain; charset=utf-8", Body::empty());
    // A path that begins with `//` would be an address of another host.
    let to = format!("/{}", path.trim_start_matches('/'));
    for (name, value) in [(header::LOCATION, to.as_str()), (header::SET_COOKIE, cookie)] {
        if let Ok(value) = HeaderValue::from_str(value) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

fn response(status: StatusCode, kind: &'static str, body: impl Into<Body>) -> Response {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let headers: [(HeaderName, &'static str); 7] = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, CONTENT_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}
