# The command line alone: no shell, no certificate authorities (mount a file and name it with --tls-ca). The context has a folder for each
# architecture, amd64 and arm64, with the static program and the licenses of its archive. packages/compose has uses.
#
# There is no HEALTHCHECK, because `rescind` has no command that asks. /healthz and /readyz of `--page` are on loopback, so a second
# container in the same network namespace can ask them; from outside, probe the listener's port.
FROM scratch
ARG TARGETARCH
COPY ${TARGETARCH}/ /
USER 65532:65532
ENTRYPOINT ["/rescind"]
