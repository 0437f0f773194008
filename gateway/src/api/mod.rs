//! REST at `/api/v1`: jobs, tasks, attempts, nodes, files and the scheduler, as JSON for programs.
//!
//! The names in the JSON are those of `mrctl --json`. Within version 1, names are added but neither
//! changed nor removed. `/api/v1/openapi.json` describes all calls; it is generated from the
//! handlers.

mod error;
mod extract;
mod files;
mod jobs;
mod nodes;
mod stream;

use crate::service::Service;
use axum::{
    Json, Router,
    routing::{get, post},
};
use error::{ApiError, ErrorReply};
use std::sync::Arc;
use utoipa::{
    Modify, OpenApi,
    openapi::{
        RefOr, Schema,
        security::{ApiKey, ApiKeyValue, Http, HttpAuthScheme, SecurityScheme},
    },
};

type Answer<T> = Result<Json<T>, ApiError>;

/// The default and the largest number of entries of a page.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1000;

#[derive(OpenApi)]
#[openapi(
    info(title = "Fermata", version = "1", description = "Jobs, tasks, nodes and files of a Fermata cluster."),
    paths(
        jobs::list,
        jobs::submit,
        jobs::show,
        jobs::watch,
        jobs::kill,
        jobs::tasks,
        jobs::counters,
        jobs::why,
        jobs::task,
        jobs::resume,
        jobs::attempt,
        jobs::log,
        jobs::preempt,
        jobs::events,
        nodes::list,
        nodes::scheduler,
        nodes::shadow,
        files::show,
        files::list,
    ),
    components(schemas(ErrorReply)),
    modifiers(&Schemes, &Ids),
    security(("bearer" = []), ("delegation" = []), ("user.name" = []))
)]
struct Description;

/// The ways to show a credential.
struct Schemes;

impl Modify for Schemes {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let query =
            |name, about| SecurityScheme::ApiKey(ApiKey::Query(ApiKeyValue::with_description(name, about)));
        components.add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
        components.add_security_scheme("delegation", query("delegation", "A token of the cluster."));
        components.add_security_scheme("user.name", query("user.name", "The user, in an open cluster only."));
    }
}

/// The form of the IDs in paths, by name of the parameter.
struct Ids;

impl Modify for Ids {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let number = "(0|[1-9][0-9]*)";
        let (job, task) = (format!("job_{number}"), format!("\\.[mr]{number}"));
        let forms = [
            ("attempt", format!("^{job}{task}\\.{number}$")),
            ("task", format!("^{job}{task}$")),
            ("job", format!("^{job}$")),
        ];
        let items = openapi.paths.paths.values_mut();
        let calls = items.flat_map(|item| [&mut item.get, &mut item.post]).flatten();
        for parameter in calls.filter_map(|call| call.parameters.as_mut()).flatten() {
            let form = forms.iter().find(|(name, _)| parameter.name == *name);
            if let (Some((_, form)), Some(RefOr::T(Schema::Object(id)))) = (form, &mut parameter.schema) {
                id.pattern = Some(form.clone());
            }
        }
    }
}

/// Returns the router of the API.
pub(crate) fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/api/v1/openapi.json", get(async || Json(Description::openapi())))
        .route("/api/v1/jobs", get(jobs::list).post(jobs::submit))
        .route("/api/v1/jobs/{job}", get(jobs::show))
        .route("/api/v1/jobs/{job}/watch", get(jobs::watch))
        .route("/api/v1/jobs/{job}/kill", post(jobs::kill))
        .route("/api/v1/jobs/{job}/tasks", get(jobs::tasks))
        .route("/api/v1/jobs/{job}/counters", get(jobs::counters))
        .route("/api/v1/jobs/{job}/why", get(jobs::why))
        .route("/api/v1/tasks/{task}", get(jobs::task))
        .route("/api/v1/tasks/{task}/resume", post(jobs::resume))
        .route("/api/v1/attempts/{attempt}", get(jobs::attempt))
        .route("/api/v1/attempts/{attempt}/log", get(jobs::log))
        .route("/api/v1/attempts/{attempt}/preempt", post(jobs::preempt))
        .route("/api/v1/events", get(jobs::events))
        .route("/api/v1/nodes", get(nodes::list))
        .route("/api/v1/scheduler", get(nodes::scheduler))
        .route("/api/v1/scheduler/shadow", get(nodes::shadow))
        .route("/api/v1/files/status", get(files::show))
        .route("/api/v1/files", get(files::list))
        .with_state(service)
}

/// Returns a page of a list that is sorted by ID: the entries after `after`, and the ID to continue
/// after, if there are more.
fn page<T>(
    all: Vec<T>,
    id: impl Fn(&T) -> &str,
    after: Option<&str>,
    limit: Option<usize>,
) -> Result<(Vec<T>, Option<String>), ApiError> {
    let limit = limit.unwrap_or(PAGE_DEFAULT);
    if !(1..=PAGE_MAX).contains(&limit) {
        return Err(ApiError::invalid(format!("limit={limit}: must be from 1 to {PAGE_MAX}")));
    }
    let from = match after {
        None => 0,
        Some(after) => match all.iter().position(|one| id(one) == after) {
            Some(at) => at + 1,
            None => return Err(ApiError::invalid(format!("after={after}: the list has no such entry"))),
        },
    };
    let more = all.len() > from + limit;
    let entries: Vec<T> = all.into_iter().skip(from).take(limit).collect();
    let next = entries.last().filter(|_| more).map(|last| id(last).to_owned());
    Ok((entries, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_is_divided_into_pages() {
        let all = || vec!["a".to_owned(), "b".into(), "c".into()];
        let part = |after, limit| page(all(), |one| one.as_str(), after, limit);
        assert_eq!(part(None, Some(2)).unwrap(), (vec!["a".into(), "b".into()], Some("b".into())));
        assert_eq!(part(Some("b"), Some(2)).unwrap(), (vec!["c".into()], None));
        assert_eq!(part(None, None).unwrap().1, None);
        assert!(part(Some("x"), None).is_err() && part(None, Some(0)).is_err());
        assert!(part(None, Some(PAGE_MAX + 1)).is_err());
    }

    #[test]
    fn description_has_every_handler_with_its_answers() {
        let text = Description::openapi().to_json().unwrap();
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let paths = value["paths"].as_object().unwrap();
        for (path, method, body) in [
            ("/api/v1/jobs", "get", "JobsPage"),
            ("/api/v1/jobs", "post", "Submitted"),
            ("/api/v1/jobs/{job}", "get", "Job"),
            ("/api/v1/nodes", "get", "NodesPage"),
            ("/api/v1/files", "get", "FilesPage"),
        ] {
            let answers = paths[path][method]["responses"].to_string();
            assert!(answers.contains(&format!("/{body}\"")), "{method} {path}: {answers}");
        }
        let form = |path: &str| paths[path]["get"]["parameters"][0]["schema"]["pattern"].as_str().unwrap();
        assert_eq!(form("/api/v1/jobs/{job}"), "^job_(0|[1-9][0-9]*)$");
        assert!(form("/api/v1/attempts/{attempt}/log").ends_with("\\.(0|[1-9][0-9]*)$"));
        let schemas = &value["components"]["schemas"];
        assert!(schemas["Job"]["properties"]["submitted_ms"].is_object());
        for name in text.split("#/components/schemas/").skip(1).filter_map(|rest| rest.split('"').next()) {
            assert!(schemas[name].is_object(), "{name} is not described");
        }
    }
}
