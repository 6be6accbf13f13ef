-- write_drain: delete the waiting jobs of a queue before an overwrite is committed, one bounded batch per call.
-- KEYS 1 meta   ARGV 1 packed {last commit, cursor, batch, total}   -> packed {state, deleted, cursor, last commit}
--   last commit: -1 = return that of the queue, and delete nothing. Otherwise the batch is deleted only if no write was
--   committed in the queue since ('ok'; else 'changed'): the jobs of a later commit stay, also if this call is late.
--   cursor, batch, total: as for `drain`. Bound: as for `drain`.

local S = G.staging

G.export('write_drain', { 'allow-oom' }, G.for_operators(function(q, r)
  local last = S.last_commit(q)
  if r.last_commit ~= last then
    local state = r.last_commit < 0 and 'ok' or 'changed'
    return G.replies.write_drain({ state = state, deleted = 0, cursor = '', last_commit = last })
  end
  local deleted, cursor = G.drain_some(q, { delayed = false, cursor = r.cursor, batch = r.batch, total = r.total })
  return G.replies.write_drain({ state = 'ok', deleted = deleted, cursor = cursor, last_commit = last })
end))
