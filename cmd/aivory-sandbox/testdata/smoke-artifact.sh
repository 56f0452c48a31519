export SANDBOX_URL=${SANDBOX_URL:-http://127.0.0.1:48217}

export SID="$(curl -sS -X POST "$SANDBOX_URL/sessions" \
  -H "Authorization: Bearer $SANDBOX_API_KEY" \
  -H 'Content-Type: application/json' \
  -d '{"archive_key":"api-smoke-test"}' \
  | python3 -c 'import json,sys; print(json.load(sys.stdin)["session_id"])')"

curl -sS -X POST "$SANDBOX_URL/exec" \
  -H "Authorization: Bearer $SANDBOX_API_KEY" \
  -H 'Content-Type: application/json' \
  -d "$(python3 -c 'import json,os; print(json.dumps({"session_id":os.environ["SID"],"code":"from pathlib import Path\nPath(\"/workspace/outputs/hello.txt\").write_text(\"hello\", encoding=\"utf-8\")\nprint(\"ok\")","timeout_ms":30000}))')" \
  | python3 -m json.tool

curl -sS -X DELETE "$SANDBOX_URL/sessions/$SID" \
  -H "Authorization: Bearer $SANDBOX_API_KEY" \
  -H 'Content-Type: application/json' \
  -d '{}'
