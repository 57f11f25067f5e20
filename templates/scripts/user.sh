# user.sh: a user who is not root, and a home that any uid may write to (Kubernetes and OpenShift choose their own).
set -eu
if ! id -u trainer >/dev/null 2>&1; then
  uid=1000
  while getent passwd "$uid" >/dev/null; do uid=$((uid + 1)); done
  useradd --uid "$uid" --user-group --no-log-init --no-create-home --home-dir /home/trainer --shell /bin/bash trainer
fi
mkdir -p /home/trainer /workspace
chmod 1777 /home/trainer /workspace
rm -f /etc/passwd- /etc/group- /etc/shadow- /etc/gshadow-
