//! A configuration made of PEM texts, which is made again after a file changes.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use tokio::time::Instant;

use super::pem::{Pem, Role, Text, TlsError};

/// The default time between two checks.
const CHECK_EVERY: Duration = Duration::from_secs(2);

/// The texts of which a configuration is made.
#[derive(Clone)]
pub(super) struct Parts<T> {
    /// A certificate chain and its key.
    pub(super) identity: Option<(T, T)>,
    pub(super) authorities: Option<T>,
}

impl<T> Parts<T> {
    fn each(&self) -> impl Iterator<Item = &T> {
        let identity = self.identity.iter().flat_map(|(chain, key)| [chain, key]);
        identity.chain(&self.authorities)
    }
}

impl Parts<Pem> {
    pub(super) fn read(&self) -> Result<Parts<Text>, TlsError> {
        let identity = match &self.identity {
            Some((chain, key)) => Some((chain.read(Role::Certificate)?, key.read(Role::Key)?)),
            None => None,
        };
        let authorities = self.authorities.as_ref().map(|pem| pem.read(Role::Authorities)).transpose()?;
        Ok(Parts { identity, authorities })
    }
}

type Build<C> = dyn Fn(&Parts<Text>) -> Result<C, TlsError> + Send + Sync;

/// A configuration of rustls, fixed or made of PEM.
pub(super) enum Source<C> {
    Config(Arc<C>),
    Pem(Arc<Reloading<C>>),
}

impl<C> Clone for Source<C> {
    fn clone(&self) -> Self {
        match self {
            Self::Config(config) => Self::Config(Arc::clone(config)),
            Self::Pem(reloading) => Self::Pem(Arc::clone(reloading)),
        }
    }
}

impl<C: Send + Sync + 'static> Source<C> {
    /// Reads the texts now.
    pub(super) fn read(parts: Parts<Pem>, every: Duration, build: Arc<Build<C>>) -> Result<Self, TlsError> {
        let texts = parts.read()?;
        let config = Arc::new(build(&texts)?);
        let state = ReloadState { loaded: Some((config, texts)), checked: Instant::now(), reported: None };
        Ok(Self::reloading(parts, every, build, state))
    }

    /// Reads the texts at the first handshake.
    pub(super) fn later(parts: Parts<Pem>, every: Duration, build: Arc<Build<C>>) -> Self {
        let state = ReloadState { loaded: None, checked: Instant::now(), reported: None };
        Self::reloading(parts, every, build, state)
    }

    fn reloading(parts: Parts<Pem>, every: Duration, build: Arc<Build<C>>, state: ReloadState<C>) -> Self {
        let (state, checking) = (Mutex::new(state), Mutex::default());
        Self::Pem(Arc::new(Reloading { parts, every, build, state, checking }))
    }

    pub(super) fn check_every(self, every: Duration) -> Self {
        let Self::Pem(old) = self else { return self };
        let state = old.state().clone();
        Self::reloading(old.parts.clone(), every, Arc::clone(&old.build), state)
    }

    /// The parts and the time between two checks. `None`: the configuration was not made of PEM.
    pub(super) fn parts(&self) -> Option<(Parts<Pem>, Duration)> {
        match self {
            Self::Config(_) => None,
            Self::Pem(reloading) => Some((reloading.parts.clone(), reloading.every)),
        }
    }

    /// The configuration for a handshake that begins now.
    pub(super) async fn current(&self) -> std::io::Result<Arc<C>> {
        let reloading = match self {
            Self::Config(config) => return Ok(Arc::clone(config)),
            Self::Pem(reloading) => reloading,
        };
        if let Some(config) = reloading.without_check() {
            return Ok(config);
        }
        let checked = Arc::clone(reloading);
        let checked = tokio::task::spawn_blocking(move || checked.check()).await;
        checked.map_err(std::io::Error::other)?.map_err(std::io::Error::other)
    }
}

/// The default of [`Source::check_every`].
pub(super) const fn default_interval() -> Duration {
    CHECK_EVERY
}

pub(super) struct Reloading<C> {
    parts: Parts<Pem>,
    every: Duration,
    build: Arc<Build<C>>,
    /// Held for a few instructions.
    state: Mutex<ReloadState<C>>,
    /// Held while files are read, outside the tasks of the runtime.
    checking: Mutex<()>,
}

struct ReloadState<C> {
    loaded: Option<(Arc<C>, Parts<Text>)>,
    checked: Instant,
    /// The error that was logged last, until the texts can be used again.
    reported: Option<String>,
}

impl<C> Clone for ReloadState<C> {
    fn clone(&self) -> Self {
        Self { loaded: self.loaded.clone(), checked: self.checked, reported: self.reported.clone() }
    }
}

impl<C> Reloading<C> {
    fn state(&self) -> MutexGuard<'_, ReloadState<C>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration, if no check is due.
    fn without_check(&self) -> Option<Arc<C>> {
        let mut state = self.state();
        let (config, _) = state.loaded.as_ref()?;
        let config = Arc::clone(config);
        if !self.parts.each().any(Pem::is_file) || state.checked.elapsed() < self.every {
            return Some(config);
        }
        state.checked = Instant::now();
        None
    }

    /// Reads the texts if a file has changed.
    fn check(&self) -> Result<Arc<C>, TlsError> {
        let loaded = self.state().loaded.clone();
        let _checking = match (self.checking.try_lock(), &loaded) {
            (Ok(checking), _) => checking,
            (Err(TryLockError::Poisoned(poisoned)), _) => poisoned.into_inner(),
            // Another handshake checks.
            (Err(TryLockError::WouldBlock), Some((config, _))) => return Ok(Arc::clone(config)),
            (Err(TryLockError::WouldBlock), None) => {
                self.checking.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        let loaded = self.state().loaded.clone();
        let Some((config, known)) = loaded else {
            let texts = self.parts.read()?;
            let config = Arc::new((self.build)(&texts)?);
            self.state().loaded = Some((Arc::clone(&config), texts));
            return Ok(config);
        };
        if self.parts.each().zip(known.each()).all(|(pem, text)| pem.is_unchanged(text)) {
            self.state().reported = None;
            return Ok(config);
        }
        let read = self.parts.read().and_then(|texts| {
            if texts.each().zip(known.each()).all(|(new, old)| new.bytes == old.bytes) {
                return Ok((Arc::clone(&config), texts));
            }
            let config = Arc::new((self.build)(&texts)?);
            tracing::info!("the TLS certificates were read again");
            Ok((config, texts))
        });
        let mut state = self.state();
        match read {
            Ok((config, texts)) => {
                state.loaded = Some((Arc::clone(&config), texts));
                state.reported = None;
                Ok(config)
            }
            Err(error) => {
                let text = error.to_string();
                if state.reported.as_ref() != Some(&text) {
                    tracing::warn!(error = %text, "TLS files changed and cannot be used: the earlier ones are kept");
                    state.reported = Some(text);
                }
                Ok(config)
            }
        }
    }
}
