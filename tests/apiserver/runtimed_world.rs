//! Runtime Pods with a real agent each, on the real API server, in a [`World`].

use std::ops::Deref;

use anyhow::{Result, ensure};
use berth_api::Run;
use berth_tests::berth::Berth;
use berth_tests::controlplane::ControlPlane;
use berth_tests::poll::{PATIENCE, until};
use berth_tests::proxy::Proxy;
use berth_tests::release::Account;
use berth_tests::runtimed::{Runtimed, Setup};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::serve_world::{Draft, World, phase, run};

/// A namespace with `berth serve`, whose Pods have real agents.
pub struct Agents<'p> {
    pub world: World<'p>,
    _berth: Berth,
    /// Who the agents are: the chart's ServiceAccount for them, with its rights in this namespace.
    pub agents: Account,
}

impl<'p> Deref for Agents<'p> {
    type Target = World<'p>;

    fn deref(&self) -> &World<'p> {
        &self.world
    }
}

impl Agents<'static> {
    /// On the shared control plane.
    pub async fn new(prefix: &str) -> Result<Self> {
        Self::on(ControlPlane::shared().await?, prefix).await
    }
}

impl<'p> Agents<'p> {
    pub async fn on(plane: &'p ControlPlane, prefix: &str) -> Result<Self> {
        let world = World::on(plane, prefix).await?;
        let berth = world.berth().await?;
        let agents = Account::of_agents(plane, &world.namespace).await?;
        Ok(Self { world, _berth: berth, agents })
    }

    /// A Pod as the kubelet shows it: Running and Ready. Only its agent beats.
    pub async fn agent_pod(&self, name: &str, capacity: &[(&str, &str)]) -> Result<Pod> {
        self.create_pod(name, "bash", capacity).await?;
        let status = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        Ok(self.pods.patch_status(name, &PatchParams::default(), &Patch::Strategic(status)).await?)
    }

    /// A Pod and how its agent is started.
    pub async fn setup(&self, name: &str, capacity: &[(&str, &str)]) -> Result<Setup> {
        let pod = self.agent_pod(name, capacity).await?;
        Ok(Setup::new(&self.plane.kubeconfig(&self.agents.token)?, &pod, self.plane.scratch()))
    }

    /// The same through a proxy.
    pub async fn setup_through(&self, proxy: &Proxy, name: &str, capacity: &[(&str, &str)]) -> Result<Setup> {
        let pod = self.agent_pod(name, capacity).await?;
        Ok(Setup::new(&proxy.kubeconfig(self.plane, &self.agents.token)?, &pod, self.plane.scratch()))
    }

    /// A Pod with a running agent.
    pub async fn agent(&self, name: &str, capacity: &[(&str, &str)]) -> Result<Runtimed> {
        self.setup(name, capacity).await?.start()
    }

    /// Waits until the heartbeat of a Pod begins like this: `status/reason: message`.
    pub async fn beats(&self, pod: &str, wanted: &str) -> Result<()> {
        until(&format!("the heartbeat of {pod} to say {wanted}"), PATIENCE, || async {
            let conditions = self.pods.get(pod).await?.status.unwrap_or_default().conditions.unwrap_or_default();
            let said = conditions.iter().find(|condition| condition.type_ == "kruntimes.io/RuntimedReady");
            let said = said.map(|c| format!("{}/{}: {}", c.status, c.reason.as_deref().unwrap_or_default(), c.message.as_deref().unwrap_or_default()));
            Ok(said.is_some_and(|said| said.starts_with(wanted)).then_some(()))
        })
        .await
    }

    /// Waits until the Run is in that phase.
    pub async fn until_phase(&self, name: &str, wanted: &str) -> Result<Run> {
        self.run_when(name, wanted, |run| phase(run) == wanted).await
    }

    /// Waits until the Run has ended, however.
    pub async fn ended(&self, name: &str) -> Result<Run> {
        self.run_when(name, "ended", |run| ["Succeeded", "Failed", "Timeout", "Cancelled"].contains(&phase(run))).await
    }

    /// Everything that agents asked for was theirs to ask.
    pub fn nothing_was_refused(&self) -> Result<()> {
        let asked: Vec<_> = self.plane.audit().requests()?.into_iter().filter(|request| request.user == self.agents.user).collect();
        let refused: Vec<_> = asked.iter().filter(|request| request.code == 403).collect();
        ensure!(!asked.is_empty() && refused.is_empty(), "{} requests, refused: {refused:?}", asked.len());
        Ok(())
    }

    pub async fn cancel(&self, name: &str) -> Result<()> {
        self.patch_run(name, json!({"spec": {"cancelRequested": true}})).await.map(|_| ())
    }
}

/// A Run of an inline script.
pub fn script(name: &str, text: &str) -> Draft {
    run(name).spec("source", json!({"inline": text}))
}

/// `status.outputs`.
pub fn outputs(run: &Run) -> Value {
    json!(run.status.clone().unwrap_or_default().outputs)
}
