-- add_once: add jobs as one of a numbered sequence, each number once.
-- KEYS 1 meta   ARGV 1 packed {write, batch, sequence, number, keep ms}, 2 the argument of an add
-- -> packed {status, jobs, others}: 'added', 'already' (this number was added), 'gap' (the previous number was not
-- added, or the ledger has expired). batch: -1, or the number of the micro-batch of a streaming query: the ledger holds
-- only the last one, and an older one is 'already'. Idempotent. errors: OOM (not allow-oom). Bound: the rows given.

local ADDED_OTHER = G.rows.added_other
local ADD = G.requests.add

G.export('add_once', {}, function(q, r)
  local call, ledger, batch, number = redis.call, q.P .. 'write-once:' .. r.write, r.batch, r.number
  if batch >= 0 then
    local last = tonumber(call('HGET', ledger, 'batch') or '')
    if last and batch < last then return G.replies.add_once({ status = 'already', jobs = 0, others = 0 }) end
    if last and batch > last then call('UNLINK', ledger) end
    call('HSET', ledger, 'batch', G.int(batch))
  end
  local next_number = G.count_of(call('HGET', ledger, 'p' .. r.sequence) or nil)
  if number < next_number then return G.replies.add_once({ status = 'already', jobs = 0, others = 0 }) end
  if number > next_number then return G.replies.add_once({ status = 'gap', jobs = 0, others = 0 }) end
  local request = cmsgpack.unpack(r.jobs)
  rawset(q, 'any_backlog', true)
  local _, results = G.add_rows(q, request[ADD.rows], request[ADD.quiet])
  call('HSET', ledger, 'p' .. r.sequence, G.int(number + 1))
  call('PEXPIRE', ledger, r.keep)
  G.record_temporary(q, 'write-once:' .. r.write, G.now(q), r.keep)
  local jobs = 0
  for i = 1, #results do
    if type(results[i]) == 'string' or results[i][ADDED_OTHER.outcome] == 'replaced' then jobs = jobs + 1 end
  end
  return G.replies.add_once({ status = 'added', jobs = jobs, others = #results - jobs })
end)
