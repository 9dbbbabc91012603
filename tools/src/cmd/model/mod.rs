//! `railring model`: what rails 1 to N deliver of one striped object, measured with the real engine
//! on simulated rails in virtual time, beside what theory says.

mod chart;

use anyhow::{Context as _, Result};
use railring::{ClassStats, ReadClass};
use railring_sim::{Latency, ModelConfig, ModelRail, SimRailConfig, capacity_rows};
use serde::Serialize;

use crate::args::ModelArgs;
use crate::output::{Align, Format, Out, Table};
use crate::simulated::{Reads, Simulated};
use crate::units::{Bytes, Rate, Time, plural};
use crate::{Context, UsageError};

/// The model moves real bytes, twice as many as the object has.
const OBJECT_BYTES_MAX: u64 = 1 << 30;
/// Stripes of an object that is read in one go.
const STRIPES_MAX: u64 = 16_384;

/// The rails and the object, as asked for.
#[derive(Debug, Serialize)]
struct Model {
    object_bytes: u64,
    stripe_bytes: u64,
    stripes: u64,
    rail_bytes_per_second: Vec<u64>,
    latency_ns: u64,
    jitter_ns: u64,
    window: u32,
    verify_bytes_per_second: Option<u64>,
    seed: u64,
    simulated: bool,
}

/// One row: the first so many rails. Rates are in bytes per second.
#[derive(Clone, Debug, Serialize)]
struct Row {
    rails: usize,
    piece_bytes: u64,
    /// What the engine reached, warm.
    aggregate: f64,
    /// The same at its first read, when it does not know the rails' rates.
    cold: f64,
    /// What list scheduling of the same pieces reaches.
    predicted: f64,
    /// What whole stripes reach that are dealt out evenly.
    balanced: f64,
    theoretical: f64,
    speed_up: f64,
    /// What the engine says of the read of `aggregate`, from its stage times.
    bottleneck: String,
    measured: Stages,
    predicted_bottleneck: String,
    predicted_times: Predicted,
    simulated: bool,
}

/// Where the engine says the time went; all but `lone_ns` add up to `wall_ns`.
#[derive(Clone, Copy, Debug, Serialize)]
struct Stages {
    wall_ns: u64,
    scheduling_ns: u64,
    queue_ns: u64,
    wire_ns: u64,
    verify_ns: u64,
    /// Of `wire_ns`: one rail was not done, all others were.
    lone_ns: u64,
}

impl Stages {
    fn of(class: &ClassStats) -> Self {
        Stages {
            wall_ns: class.wall_ns,
            scheduling_ns: class.scheduling_ns,
            queue_ns: class.queue_ns,
            wire_ns: class.wire_ns,
            verify_ns: class.verify_ns,
            lone_ns: class.lone_ns,
        }
    }
}

/// Where the time of the predicted read goes.
#[derive(Clone, Copy, Debug, Serialize)]
struct Predicted {
    network_ns: f64,
    latency_ns: f64,
    scheduling_ns: f64,
    verification_ns: f64,
}

pub(crate) fn run(args: &ModelArgs, context: &mut Context) -> Result<()> {
    let model = Model::of(args)?;
    let reads = Reads {
        object_bytes: model.object_bytes,
        stripe_bytes: model.stripe_bytes,
        piece_bytes_max: args.piece.0,
        verify_bytes_per_second: model.verify_bytes_per_second,
        seed: model.seed,
    };
    let mut rows: Vec<Row> = Vec::new();
    for count in 1..=model.rail_bytes_per_second.len() {
        context.stop.check()?;
        let mut row = model.row(&reads, count)?;
        row.speed_up = rows.first().map_or(1.0, |first| row.aggregate / first.aggregate);
        rows.push(row);
    }
    match args.format.format() {
        Format::Text => print(&model, &rows, &mut context.out)?,
        Format::Json => {
            context.out.json(&model)?;
            rows.iter().try_for_each(|row| context.out.json(row))?;
        }
    }
    if let Some(path) = &args.svg {
        let drawing = chart::svg(&model, &rows);
        std::fs::write(path, drawing)
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

impl Model {
    fn of(args: &ModelArgs) -> Result<Self, UsageError> {
        let (object_bytes, stripe_bytes) = (args.object.0, args.stripe.0);
        let refuse = |text: String| Err(UsageError(text));
        if !(1..=OBJECT_BYTES_MAX).contains(&object_bytes) {
            return refuse(format!(
                "--object {object_bytes}: the model moves real bytes, 1 to {OBJECT_BYTES_MAX}"
            ));
        }
        let stripes = object_bytes.div_ceil(stripe_bytes);
        if stripes > STRIPES_MAX {
            return refuse(format!(
                "{stripes} stripes are more than the {STRIPES_MAX} of one read; give a larger \
                 --stripe"
            ));
        }
        if args.jitter.0 > args.latency.0 {
            return refuse(
                "--jitter is more than --latency; no answer comes before it was asked \
                           for"
                .to_owned(),
            );
        }
        let zero = |name: &str| UsageError(format!("{name} of 0 never ends; leave it out"));
        let rates = match &args.rail[..] {
            [] => vec![args.rate.0; usize::from(args.rails)],
            rates => rates.iter().map(|rate| rate.0).collect(),
        };
        if rates.contains(&0) {
            return Err(UsageError("a rail of 0 bytes per second never delivers".to_owned()));
        }
        if args.verify.is_some_and(|rate| rate.0 == 0) {
            return Err(zero("--verify"));
        }
        Ok(Model {
            object_bytes,
            stripe_bytes: stripe_bytes.min(object_bytes),
            stripes,
            rail_bytes_per_second: rates,
            latency_ns: args.latency.0,
            jitter_ns: args.jitter.0,
            window: args.window,
            verify_bytes_per_second: args.verify.map(|rate| rate.0),
            seed: args.seed,
            simulated: true,
        })
    }

    /// The first `count` rails, simulated.
    fn rails(&self, count: usize) -> Vec<SimRailConfig> {
        let rail = |(index, rate): (usize, &u64)| SimRailConfig {
            bandwidth_bytes_per_second: *rate,
            latency: Latency::Uniform { mean_ns: self.latency_ns, spread_ns: self.jitter_ns },
            window_wrs: self.window,
            ..SimRailConfig::new(format!("rail{index}"))
        };
        self.rail_bytes_per_second[..count].iter().enumerate().map(rail).collect()
    }

    fn row(&self, reads: &Reads, count: usize) -> Result<Row> {
        let mut simulated = Simulated::new(reads, self.rails(count))?;
        let rate = |nanoseconds: u64| per_second(self.object_bytes, nanoseconds);
        let cold = rate(simulated.read()?);
        let (took, stats) = simulated.timed_read()?;
        let mut classes = ReadClass::ALL.into_iter().zip(&stats.classes);
        let (class, stages) =
            classes.find(|(_, stages)| stages.reads > 0).context("no class counted the read")?;
        let bottleneck = stats.bottleneck(class).context("the read took no time")?;
        let aggregate = rate(took);
        let piece_bytes = reads.piece_bytes(count);
        let theory = capacity_rows(&ModelConfig {
            object_bytes: self.object_bytes,
            stripe_bytes: self.stripe_bytes,
            piece_bytes,
            rails: self.rail_bytes_per_second[..count]
                .iter()
                .map(|rate| ModelRail {
                    bandwidth_bytes_per_second: *rate,
                    latency_ns: self.latency_ns,
                    window_pieces: self.window,
                })
                .collect(),
            verify_bytes_per_second: self.verify_bytes_per_second,
        })?;
        let theory = theory.last().context("there is a row per rail")?;
        Ok(Row {
            rails: count,
            piece_bytes,
            aggregate,
            cold,
            predicted: theory.aggregate_bytes_per_second,
            balanced: theory.balanced_bytes_per_second,
            theoretical: theory.theoretical_bytes_per_second,
            speed_up: 1.0,
            bottleneck: bottleneck.to_string(),
            measured: Stages::of(stages),
            predicted_bottleneck: theory.bottleneck.to_string(),
            predicted_times: Predicted {
                network_ns: theory.times.network_ns,
                latency_ns: theory.times.latency_ns,
                scheduling_ns: theory.times.scheduling_ns,
                verification_ns: theory.times.verification_ns,
            },
            simulated: true,
        })
    }

    /// What is read over what, in words.
    fn words(&self) -> [String; 2] {
        let object = format!(
            "{} in {} of {}",
            Bytes(self.object_bytes),
            plural(self.stripes, "stripe", "stripes"),
            Bytes(self.stripe_bytes)
        );
        let rates = &self.rail_bytes_per_second;
        let equal = rates.iter().all(|rate| *rate == rates[0]);
        let rates = if equal {
            Rate(float(rates[0])).to_string()
        } else {
            let each: Vec<String> =
                rates.iter().map(|rate| Rate(float(*rate)).to_string()).collect();
            each.join(", ")
        };
        let verify = self
            .verify_bytes_per_second
            .map_or(String::new(), |rate| format!(", one core verifying {}", Rate(float(rate))));
        let rails = format!(
            "simulated rails of {rates}, {} +- {} away{verify}",
            Time::from_ns(self.latency_ns),
            Time::from_ns(self.jitter_ns)
        );
        [object, rails]
    }
}

#[expect(clippy::cast_precision_loss, reason = "rates and sizes are shown with three digits")]
fn float(number: u64) -> f64 {
    number as f64
}

fn per_second(bytes: u64, nanoseconds: u64) -> f64 {
    float(bytes) * 1e9 / float(nanoseconds.max(1))
}

fn print(model: &Model, rows: &[Row], out: &mut Out) -> Result<()> {
    let [object, rails] = model.words();
    out.line(format_args!("{object}, over {rails}"))?;
    out.line("the engine is the real one, its time is virtual (simulated)\n")?;
    let mut table = Table::new(&[
        ("rails", Align::Right),
        ("aggregate", Align::Right),
        ("predicted", Align::Right),
        ("balanced", Align::Right),
        ("theoretical", Align::Right),
        ("of it", Align::Right),
        ("speed-up", Align::Right),
        ("pieces", Align::Right),
        ("bottleneck", Align::Left),
    ]);
    for row in rows {
        table.row(vec![
            row.rails.to_string(),
            Rate(row.aggregate).to_string(),
            Rate(row.predicted).to_string(),
            Rate(row.balanced).to_string(),
            Rate(row.theoretical).to_string(),
            format!("{:.1} %", 100.0 * row.aggregate / row.theoretical),
            format!("{:.2}", row.speed_up),
            Bytes(row.piece_bytes).to_string(),
            row.bottleneck.clone(),
        ]);
    }
    table.print(out)?;
    out.line(
        "\naggregate: the engine's second read. predicted: the same pieces, each to the rail that \
         ends first.\nbalanced: whole stripes dealt out evenly. theoretical: the sum of the rails. \
         bottleneck: what the\nengine says of that read, from the times of its stages.",
    )?;
    Ok(())
}
