//! Writes figures one after another, each with its help, its type and its unit.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// The figures of one answer. Names are given without their units, and counters without `_total`.
pub(super) struct Sheet<'a>(pub(super) DescriptorEncoder<'a>);

impl Sheet<'_> {
    pub(super) fn entry(
        &mut self,
        name: &str,
        unit: Option<Unit>,
        help: &str,
        kind: MetricType,
        write: impl FnOnce(MetricEncoder<'_>) -> fmt::Result,
    ) -> fmt::Result {
        write(self.0.encode_descriptor(name, help, unit.as_ref(), kind)?)
    }

    /// Writes a number of things that only grows.
    pub(super) fn count(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.entry(name, None, help, MetricType::Counter, |entry| ConstCounter::new(value).encode(entry))
    }

    /// Writes a number of bytes that only grows.
    pub(super) fn bytes_total(&mut self, name: &str, help: &str, bytes: u64) -> fmt::Result {
        let unit = Some(Unit::Bytes);
        self.entry(name, unit, help, MetricType::Counter, |entry| ConstCounter::new(bytes).encode(entry))
    }

    /// Writes a time that only grows.
    pub(super) fn time_total(&mut self, name: &str, help: &str, ns: u64) -> fmt::Result {
        let (unit, seconds) = (Some(Unit::Seconds), ns as f64 / 1e9);
        self.entry(name, unit, help, MetricType::Counter, |entry| ConstCounter::new(seconds).encode(entry))
    }

    /// Writes a number of things now.
    pub(super) fn now(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.entry(name, None, help, MetricType::Gauge, |entry| ConstGauge::new(value).encode(entry))
    }

    /// Writes a number of bytes now.
    pub(super) fn bytes_now(&mut self, name: &str, help: &str, bytes: u64) -> fmt::Result {
        let unit = Some(Unit::Bytes);
        self.entry(name, unit, help, MetricType::Gauge, |entry| ConstGauge::new(bytes).encode(entry))
    }

    /// Writes a time that has passed now.
    pub(super) fn time_now(&mut self, name: &str, help: &str, seconds: f64) -> fmt::Result {
        let unit = Some(Unit::Seconds);
        self.entry(name, unit, help, MetricType::Gauge, |entry| ConstGauge::new(seconds).encode(entry))
    }

    /// Writes labels that do not change.
    pub(super) fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        self.entry(name, None, help, MetricType::Info, |mut entry| entry.encode_info(&labels))
    }
}
