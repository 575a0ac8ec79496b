#!/usr/bin/env bash
# The guide of docs/deployment.md, step by step, with three processes on this machine instead of three machines:
# a server and two hospitals, TLS, registered keys, each hospital with its own folder of images.
#
#   examples/deployment/run_on_loopback.sh FOLDER [ROUNDS] [PORT]
#
# FOLDER/hospital-a/images and FOLDER/hospital-b/images are used if they are there, and made (synthetic) if not.
#
#   SECURE=1 examples/deployment/run_on_loopback.sh FOLDER [ROUNDS] [PORT]
#
# The same with three hospitals and secure aggregation: the server learns the sum of their uploads, and no single one.
set -euo pipefail
folder=$(mkdir -p "$1" && cd "$1" && pwd) rounds=${2:-3} port=${3:-9092}
hospitals=(hospital-a hospital-b) at_server=() at_hospitals=()
if [ -n "${SECURE:-}" ]; then
  hospitals+=(hospital-c)
  at_server=(--set aggregation.secure=true --set aggregation.secure_max_examples=1000
    --set update_rule.lambda_at=client)
  at_hospitals=(--require-secure-aggregation)
fi
pids=()
trap 'for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; wait' EXIT

# Each machine has a folder of its own here.
for machine in server "${hospitals[@]}"; do mkdir -p "$folder/$machine"; done

# 1. Server: a CA, and a certificate for the name by which hospitals reach it. ca.pem goes to the hospitals.
(cd "$folder/server" && [ -e certificates/ca.pem ] || fedssl certificates make --host 127.0.0.1)
for hospital in "${hospitals[@]}"; do
  mkdir -p "$folder/$hospital/certificates" && cp "$folder/server/certificates/ca.pem" "$folder/$hospital/certificates/"
done

# 2. Each hospital: a key of its own. The public half goes to the server.
for hospital in "${hospitals[@]}"; do
  (cd "$folder/$hospital" && [ -e "keys/$hospital.key" ] || fedssl certificates node "$hospital")
  mkdir -p "$folder/server/keys" && cp "$folder/$hospital/keys/$hospital.pub" "$folder/server/keys/"
done

#    With secure aggregation the public halves go to all other hospitals, too, in one file, whose fingerprint they compare
#    on the phone: then the server cannot put a key of its own between two of them.
if [ -n "${SECURE:-}" ]; then
  for hospital in "${hospitals[@]}"; do
    (cd "$folder/$hospital" && fedssl certificates roster "$folder"/server/keys/*.pub)
  done
fi

# 3. Each hospital: its images. (Here: synthetic ones, if there are none.)
for hospital in "${hospitals[@]}"; do
  [ -d "$folder/$hospital/images" ] || python3 "$(dirname "$0")/make_images.py" "$folder/$hospital/images" "$hospital"
done

# 4. Each hospital: start the client. It waits for the server and comes back by itself whatever happens.
for hospital in "${hospitals[@]}"; do
  (cd "$folder/$hospital" && exec fedssl client --name "$hospital" --server "127.0.0.1:$port" --data images \
    --state state ${at_hospitals[@]+"${at_hospitals[@]}"} >client.log 2>&1) &
  pids+=($!)
done

# 5. Server: start the run. The same command resumes after any stop.
cd "$folder/server"
fedssl server sites --clients "$(IFS=,; echo "${hospitals[*]}")" --host 127.0.0.1 --port "$port" --out run \
  --set rounds="$rounds" --set threads=1 --set data.image_size=32 ${at_server[@]+"${at_server[@]}"} ${SETTINGS:-}
