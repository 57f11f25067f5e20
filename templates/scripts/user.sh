# user.sh UID FOLDER: a user who is not root, a home that any uid may write to (Kubernetes and OpenShift choose their own),
# and FOLDER on the PATH of login shells too, which Debian's /etc/profile would set anew.
set -eu
if ! getent passwd "$1" >/dev/null; then
  useradd --uid "$1" --user-group --no-log-init --no-create-home --home-dir /home/trainer --shell /bin/bash trainer
fi
# .cache too: a fresh volume takes the owner and the mode of the folder that it is mounted on.
mkdir -p /home/trainer/.cache /workspace
chmod 1777 /home/trainer /home/trainer/.cache /workspace
printf 'PATH=%s:$PATH\n' "$2" >/etc/profile.d/truetag.sh
