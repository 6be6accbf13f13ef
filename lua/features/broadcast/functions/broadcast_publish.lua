-- broadcast_publish: add messages for every subscription, like `add`, and trim old messages.
-- KEYS 1 meta   ARGV 1 packed {rows, quiet, most, age}   -> packed {now, results}, as `add`
-- most: messages kept, 0 = any number   age: ms for which they are kept, 0 = no limit
-- Bound: the rows; deletes at most 1,000 messages plus as many as there are rows.
-- errors: OOM (not allow-oom: a full server rejects new messages)
G.export('broadcast_publish', {}, function(q, request)
  local rows, most, age = request.rows, request.most, request.age
  local now, results = G.add_rows(q, rows, request.quiet)
  if most > 0 or age > 0 then G.subscriptions.trim(q, now, most, age, #rows) end
  return { now = now, results = results }
end)
