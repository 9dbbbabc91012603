//! `railring model`: rows that fit each other, a chart that is one, and what is refused.

use crate::rig::{Place, railring};

fn number(row: &serde_json::Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("no {field} in {row}"))
}

#[test]
fn rows_follow_from_the_rails_and_the_engine_reaches_what_is_predicted() {
    let run = railring(&["model", "--rails", "5", "--object", "16M", "--stripe", "1M", "--json"]);
    let lines = run.good().json();
    assert_eq!((lines.len(), &lines[0]["stripes"]), (6, &16.into()));
    for (row, rails) in lines[1..].iter().zip(1_u32..) {
        assert_eq!((&row["rails"], &row["simulated"]), (&rails.into(), &true.into()));
        let theoretical = 125e6 * f64::from(rails);
        assert_eq!(number(row, "theoretical"), theoretical);
        let balanced = 125e6 * 16.0 / f64::from(16_u32.div_ceil(rails));
        assert!((number(row, "balanced") / balanced - 1.0).abs() < 1e-9, "{row}");
        let [aggregate, predicted] = ["aggregate", "predicted"].map(|field| number(row, field));
        assert!(aggregate <= theoretical && (aggregate / predicted - 1.0).abs() < 0.03, "{row}");
        let times = ["network_ns", "latency_ns", "scheduling_ns", "verification_ns"];
        let all: f64 = times.iter().map(|field| number(&row["predicted_times"], field)).sum();
        assert!((f64::from(16_u32 << 20) * 1e9 / all / predicted - 1.0).abs() < 1e-9, "{row}");
        let stages = ["scheduling_ns", "queue_ns", "wire_ns", "verify_ns"];
        let all: f64 = stages.iter().map(|field| number(&row["measured"], field)).sum();
        assert_eq!(all, number(&row["measured"], "wall_ns"));
        assert!((f64::from(16_u32 << 20) * 1e9 / all / aggregate - 1.0).abs() < 1e-9, "{row}");
        assert_eq!(
            (&row["bottleneck"], &row["predicted_bottleneck"]),
            (&"network".into(), &"network".into())
        );
        let speed_up = aggregate / number(&lines[1], "aggregate");
        assert!((number(row, "speed_up") - speed_up).abs() < 1e-9, "{row}");
    }
}

#[test]
fn a_slow_rail_costs_its_share_and_a_slow_core_is_named() {
    let rails = ["--rail", "125MB,125MB,125MB,31250KB"];
    let run = railring(&[&["model", "--object", "64M", "--json"][..], &rails].concat()).good();
    let row = run.json().pop().expect("four rows");
    assert_eq!(number(&row, "theoretical"), 3.25 * 125e6);
    assert!(number(&row, "aggregate") > 0.95 * 3.25 * 125e6, "{row}");
    assert!(number(&row, "balanced") < 0.32 * 3.25 * 125e6, "{row}");

    let run =
        railring(&["model", "--object", "16M", "--rails", "4", "--verify", "100MB", "--json"]);
    let row = run.good().json().pop().expect("four rows");
    let word = "verification".into();
    assert_eq!((&row["bottleneck"], &row["predicted_bottleneck"]), (&word, &word));
    let [aggregate, predicted] = ["aggregate", "predicted"].map(|field| number(&row, field));
    assert!(aggregate < 100e6 && (aggregate / predicted - 1.0).abs() < 0.25, "{row}");
}

#[test]
fn the_table_has_its_columns_and_the_chart_its_lines() {
    let place = Place::new(0);
    let path = place.path("model.svg");
    let svg = path.to_str().expect("UTF-8");
    let run = railring(&["model", "--rails", "3", "--object", "8M", "--svg", svg]).good();
    for column in ["aggregate", "balanced", "theoretical", "speed-up", "bottleneck", "virtual"] {
        assert!(run.text().contains(column), "no {column} in {}", run.text());
    }
    let drawing = std::fs::read_to_string(&path).expect("it was written");
    assert!(drawing.starts_with("<svg ") && drawing.ends_with("</svg>\n"));
    assert_eq!(drawing.matches("<polyline").count(), 4);
    assert_eq!(drawing.matches("<circle").count(), 6);
    let twice = railring(&["model", "--rails", "3", "--object", "8M"]).good();
    assert_eq!(run.text(), twice.text(), "the same seed");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (arguments, words) in [
        (&["--rails", "0"][..], "0 is not in 1..=64"),
        (&["--object", "0"], "moves real bytes"),
        (&["--object", "2G"], "moves real bytes"),
        (&["--stripe", "1K"], "larger --stripe"),
        (&["--rate", "0"], "never delivers"),
        (&["--rail", "1MB,0"], "never delivers"),
        (&["--rail", "1MB", "--rate", "2MB"], "cannot be used with"),
        (&["--verify", "0"], "never ends"),
        (&["--jitter", "1ms"], "more than --latency"),
        (&["--latency", "5"], "number and a unit"),
        (&["--piece", "4K"], "at least 65536"),
        (&["--window", "0"], "is not in 1..=65536"),
    ] {
        railring(&[&["model"], arguments].concat()).bad(2, &[words]);
    }
    let run = railring(&["model", "--object", "1M", "--stripe", "1M", "--svg", "/nowhere/x.svg"]);
    run.bad(1, &["cannot write /nowhere/x.svg"]);
}
