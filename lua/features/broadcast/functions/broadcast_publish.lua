-- broadcast_publish: messages for every subscription; like `add`, and what is more than is to be kept goes.
-- KEYS 1 meta   ARGV 1 packed {rows, quiet, most, age}   -> packed {now, results}, as `add`
-- most: messages kept, 0 = any number   age: ms for which they are kept, 0 = for ever
-- Bound: besides the rows at most 1000 messages and as many as there are rows are deleted.
-- errors: OOM (not allow-oom: a full server refuses new messages)
G.export('broadcast_publish', {}, function(keys, args)
  local q, request = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local rows, most, age = request[1], request[3], request[4]
  local now, results = G.add_rows(q, rows, request[2])
  if most > 0 or age > 0 then G.subscriptions.trim(q, now, most, age, #rows) end
  return cmsgpack.pack({ now, results })
end)
