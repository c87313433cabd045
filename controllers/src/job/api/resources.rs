//! Requests and limits of cpu and memory: the only resources that a Job can ask for (specification, "resources").

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Amounts of the two resources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Amounts {
    /// CPU, in cores, as `500m` or `2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Memory, in bytes, as `512Mi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// Requests for admission and scheduling, limits for the execution.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ResourceRequirements {
    /// What the execution is given at least.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Amounts>,
    /// What the execution may use at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Amounts>,
}

/// One of the two resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// CPU.
    Cpu,
    /// Memory.
    Memory,
}

impl Resource {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Cpu, Self::Memory];

    /// Its name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Memory => "memory",
        }
    }
}

impl Amounts {
    /// The amount of one resource.
    pub fn get(&self, resource: Resource) -> Option<&Quantity> {
        match resource {
            Resource::Cpu => self.cpu.as_ref(),
            Resource::Memory => self.memory.as_ref(),
        }
    }

    /// Where the amount of one resource is kept.
    pub fn slot(&mut self, resource: Resource) -> &mut Option<Quantity> {
        match resource {
            Resource::Cpu => &mut self.cpu,
            Resource::Memory => &mut self.memory,
        }
    }
}
