# user.sh UID: a user who is not root, and a home that any uid may write to (Kubernetes and OpenShift choose their own).
set -eu
if ! getent passwd "$1" >/dev/null; then
  useradd --uid "$1" --user-group --no-log-init --no-create-home --home-dir /home/trainer --shell /bin/bash trainer
fi
mkdir -p /home/trainer /workspace
chmod 1777 /home/trainer /workspace
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow-
