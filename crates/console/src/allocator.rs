//! `/allocator`: the allocator, its settings and memory usage; changes of settings; heap profiles.

use crate::Console;
use crate::buckets::refused;
use crate::work::{Lane, Party};
use axum::Json;
use axum::extract::{Form, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use memory::backend::settings::Setting;
use memory::backend::{self, report};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// `GET /allocator`. Walks all arenas, and makes the kernel walk all pages of the process.
pub async fn show(State(console): State<Console>, party: Party) -> Response {
    match console.measure(&party, |console| document(&console)).await {
        Ok(document) => Json(document).into_response(),
        Err(refusal) => refused(refusal),
    }
}

fn document(console: &Console) -> Value {
    let settings = report::settings().into_iter().map(|(setting, value)| {
        // Numbers and booleans become JSON numbers and booleans.
        let value = serde_json::from_str(&value).unwrap_or(Value::String(value));
        (setting.name().to_owned(), value)
    });
    let figures = report::figures().into_iter().map(|figure| (figure.name.to_owned(), figure.value.into()));
    let buckets = console.node.buckets().into_iter().map(|bucket| {
        let figures = bucket.arena_figures().into_iter().map(|(name, bytes)| (name.to_owned(), bytes.into()));
        (bucket.name().to_owned(), Value::Object(figures.collect()))
    });
    let changeable =
        Setting::ALL.iter().filter(|setting| setting.missing().is_none() && !setting.is_of_boot());
    let missing = Setting::ALL
        .iter()
        .filter_map(|setting| Some((setting.name().to_owned(), setting.missing()?.into())));
    json!({
        "allocator": backend::version(),
        "systemThp": report::system_thp(),
        "settings": Value::Object(settings.collect()),
        "changeable": changeable.map(|setting| setting.name()).collect::<Vec<_>>(),
        "missing": Value::Object(missing.collect()),
        "figures": Value::Object(figures.collect()),
        "buckets": Value::Object(buckets.collect::<Map<_, _>>()),
    })
}

/// `POST /allocator`: a form of settings, by their names in `[allocator]`. They stay in force until the configuration
/// is read again.
pub async fn set(
    State(console): State<Console>,
    party: Party,
    Form(fields): Form<Vec<(String, String)>>,
) -> Response {
    let control = Arc::clone(&console.control);
    match console.change(&party, "dm:settings", move || control.set_allocator(&fields)).await {
        Ok(()) => StatusCode::OK.into_response(),
        Err(refusal) => refused(refusal),
    }
}

/// `POST /allocator/profile`: answers once the profile is written.
pub async fn profile(State(console): State<Console>, party: Party) -> Response {
    let control = Arc::clone(&console.control);
    let made = console.work(Lane::Copies, &party, "dm:profile", move || control.heap_profile());
    match made.await.flatten() {
        Ok(file) => Json(json!({ "file": file })).into_response(),
        Err(refusal) => refused(refusal),
    }
}
