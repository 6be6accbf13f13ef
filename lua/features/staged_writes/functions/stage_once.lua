-- add_once: add jobs as one of a numbered sequence, each number once.
-- KEYS 1 meta   ARGV 1 packed {write, batch, sequence, number, keep ms}, 2 the argument of an add
-- -> packed {status, jobs, others}: 'added', 'already' (this number was added), 'gap' (the previous number was not
-- added, or the ledger has expired). batch: -1, or the number of the micro-batch of a streaming query: the ledger holds
-- only the last one, and an older one is 'already'. Idempotent. errors: OOM (not allow-oom). Bound: the rows given.

G.export('add_once', {}, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local call, ledger, batch, number = redis.call, q.P .. 'write-once:' .. r[1], r[2], r[4]
  if batch >= 0 then
    local last = tonumber(call('HGET', ledger, 'batch') or '')
    if last and batch < last then return cmsgpack.pack({ 'already', 0, 0 }) end
    if last and batch > last then call('UNLINK', ledger) end
    call('HSET', ledger, 'batch', G.int(batch))
  end
  local next_number = G.count_of(call('HGET', ledger, 'p' .. r[3]) or nil)
  if number < next_number then return cmsgpack.pack({ 'already', 0, 0 }) end
  if number > next_number then return cmsgpack.pack({ 'gap', 0, 0 }) end
  local request = cmsgpack.unpack(args[2])
  local _, results = G.add_rows(q, request[1], request[2])
  call('HSET', ledger, 'p' .. r[3], G.int(number + 1))
  call('PEXPIRE', ledger, r[5])
  G.record_temporary(q, 'write-once:' .. r[1], G.now(q), r[5])
  local jobs = 0
  for i = 1, #results do
    if type(results[i]) == 'string' or results[i][1] == 'replaced' then jobs = jobs + 1 end
  end
  return cmsgpack.pack({ 'added', jobs, #results - jobs })
end)
