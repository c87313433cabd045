//! One step of a plan on the wire: finalizer, status, delete; each a compare-and-swap behind the fence, and what people are told of it.

use super::plan::{News, Step};
use super::reconcile::Binder;
use berth_api::PersistentWorkspace;
use berth_api::constants::{FINALIZER_WORKSPACE_CLEANUP, reason};
use berth_api::persistent_workspace::PersistentWorkspaceStatus;
use berth_runtime::apiclient::{CallError, Precondition, delete_observed, finalizers_merge_patch, get_uncached, merge_difference, status_merge_patch};
use berth_runtime::events::{EventType, Occurrence, Regarding};
use berth_runtime::informer::Stored;
use berth_runtime::lease::NotLeader;
use berth_runtime::lock;
use kube::Api;

/// The workspace that a step is about, as the cache has it.
pub(super) struct Target<'a, W> {
    pub stored: &'a Stored<W>,
    pub workspace: &'a PersistentWorkspace,
    /// The term that the step was planned in.
    pub term: u64,
}

impl<P: Send + Sync + 'static, W: Send + Sync + 'static> Binder<P, W> {
    /// Does what was planned. A leader no more does nothing, and says nothing.
    pub(super) async fn apply(&self, target: &Target<'_, W>, step: &Step) -> Result<(), CallError> {
        let api: Api<PersistentWorkspace> = Api::namespaced(self.context.client.clone(), &target.stored.key.namespace);
        let version = &*target.stored.resource_version;
        match step {
            Step::Rest => {}
            Step::AddFinalizer => _ = self.add_finalizer(&api, target).await?,
            Step::Bind { pod, uid, status } => {
                let version = match has_finalizer(target.workspace) {
                    true => Some(version.to_owned()),
                    false => self.add_finalizer(&api, target).await?,
                };
                let Some(version) = version else { return Ok(()) };
                if self.write(&api, target, &version, status).await? {
                    tracing::info!(pod, pod_uid = uid, "workspace bound");
                    self.tell(target, EventType::Normal, "Bound", "Bind", format!("bound to runtime pod {pod}"));
                }
            }
            Step::Write { news, status } => {
                if self.write(&api, target, version, status).await? {
                    self.tell_news(target, *news, status);
                }
            }
            Step::Delete => {
                let Ok(_sending) = self.context.fence.begin(target.term) else { return Ok(()) };
                match delete_observed(&api, &target.stored.key.name, observed(target, version)).await {
                    // Whether it took effect shows in the cache; a second delete changes nothing.
                    Err(error) => return Err(error),
                    Ok(()) => tracing::info!("workspace deleted"),
                }
            }
            Step::RemoveFinalizer => {
                let finalizers = finalizers(target.workspace).filter(|finalizer| *finalizer != FINALIZER_WORKSPACE_CLEANUP).cloned().collect();
                if self.write_finalizers(&api, target, finalizers).await?.is_some() {
                    tracing::info!("workspace let go");
                }
            }
        }
        Ok(())
    }

    async fn add_finalizer(&self, api: &Api<PersistentWorkspace>, target: &Target<'_, W>) -> Result<Option<String>, CallError> {
        let ours = FINALIZER_WORKSPACE_CLEANUP.to_owned();
        self.write_finalizers(api, target, finalizers(target.workspace).cloned().chain([ours]).collect()).await
    }

    /// The version it leaves; None if we no longer lead.
    async fn write_finalizers(&self, api: &Api<PersistentWorkspace>, target: &Target<'_, W>, finalizers: Vec<String>) -> Result<Option<String>, CallError> {
        let version = &*target.stored.resource_version;
        let Ok(_sending) = self.context.fence.begin(target.term) else { return Ok(None) };
        // A lost answer is tried again on the same version: what took effect then shows as a conflict, and soon in the cache.
        let written = finalizers_merge_patch(api, &target.stored.key.name, observed(target, version), &finalizers).await?;
        self.supersede(&target.stored.key, version, &written.resource_version);
        Ok(Some(written.resource_version))
    }

    /// Writes the status on top of `version`; false if we no longer lead.
    async fn write(
        &self,
        api: &Api<PersistentWorkspace>,
        target: &Target<'_, W>,
        version: &str,
        wanted: &PersistentWorkspaceStatus,
    ) -> Result<bool, CallError> {
        let stored = target.stored;
        let patch = merge_difference(target.workspace.status.as_ref(), wanted);
        let sent = match self.context.fence.begin(target.term) {
            // Kept until the answer is there.
            Ok(_sending) => status_merge_patch(api, &stored.key.name, observed(target, version), &patch).await,
            Err(NotLeader) => return Ok(false),
        };
        match sent {
            Ok(written) => self.supersede(&stored.key, version, &written.resource_version),
            Err(error) if error.is_ambiguous() => {
                let now = get_uncached(api, &stored.key.name).await?;
                let happened = now.is_some_and(|now| now.metadata.uid.as_deref() == Some(&stored.uid) && now.status.as_ref() == Some(wanted));
                if !happened {
                    return Err(error);
                }
                tracing::info!(%error, "the answer of a write was lost; a read shows that it took effect");
            }
            Err(error) => return Err(error),
        }
        if target.workspace.status.as_ref().and_then(|status| status.last_used_time.as_ref()) != wanted.last_used_time.as_ref() {
            lock(&self.use_written).insert(stored.key.clone(), self.context.clock.now().mono_ms);
        }
        Ok(true)
    }

    fn tell_news(&self, target: &Target<'_, W>, news: News, status: &PersistentWorkspaceStatus) {
        let pod = status.bound_pod.as_deref().unwrap_or_default();
        match news {
            News::None => {}
            News::Lost(why) => {
                tracing::info!(pod, reason = why.as_str(), "workspace lost");
                let note = format!("runtime pod {pod} is gone, and the data with it ({})", why.as_str());
                self.tell(target, EventType::Warning, "Lost", "Lose", note);
            }
            News::Released => {
                tracing::info!(pod, "workspace released");
                let ttl_s = target.workspace.spec.ttl_seconds_after_unused.unwrap_or_default();
                self.tell(target, EventType::Normal, reason::RELEASED, "Release", format!("unused for {ttl_s} s: it is deleted, and its data removed"));
            }
            News::CannotClean => {
                tracing::info!(pod, "workspace can't be cleaned");
                let path = status.path.as_deref().unwrap_or("its directory");
                let note = format!("runtime pod {pod} advertises no agent that removes directories: {path} stays there until the pod goes");
                self.tell(target, EventType::Warning, reason::AGENT_CANNOT_CLEAN, "Clean", note);
            }
        }
    }

    fn tell(&self, target: &Target<'_, W>, type_: EventType, reason: &'static str, action: &'static str, note: String) {
        let regarding = Regarding::of::<PersistentWorkspace>(target.stored.key.clone(), target.stored.uid.clone());
        self.context.recorder.publish(Occurrence { regarding, type_, reason, action, note });
    }
}

fn observed<'a, W>(target: &'a Target<'_, W>, version: &'a str) -> Precondition<'a> {
    Precondition { uid: &target.stored.uid, resource_version: version }
}

fn finalizers(workspace: &PersistentWorkspace) -> impl Iterator<Item = &String> {
    workspace.metadata.finalizers.iter().flatten()
}

/// Whether our finalizer holds it.
pub(super) fn has_finalizer(workspace: &PersistentWorkspace) -> bool {
    finalizers(workspace).any(|finalizer| finalizer == FINALIZER_WORKSPACE_CLEANUP)
}
