-- write_publish: turn one piece of a committed write into jobs. KEYS 1 meta
--   ARGV 1 packed {write, query, batch, decided 0|1, keep ms, ballot}
--   -> packed {state, jobs, others, queues, ballot}
--   decided: the home was committed with `ballot`. Pieces prepared here with this ballot are published, others deleted.
--   'committed' = call again; 'published' = this queue's part is published, and `queues` are pending; 'done'. jobs,
--   others: added by all calls, and rows not added (duplicates; too costly for their group). ballot: of the manifest
-- write_finished: report that a queue of the write is done. KEYS 1 meta of its home
--   ARGV 1 packed {write, query, batch, queue, keep ms, jobs, others}   -> state
-- Any caller can continue after another: a piece leaves its list in the step that adds its jobs.
-- errors: OOM (not allow-oom: it adds jobs). Bound: the rows of one piece; S.LISTS_MAX attempts that did not win.

local ADDED_OTHER = G.rows.added_other
local ADD = G.requests.add
local S = G.staging

-- Add first, remove the piece second: after an error the piece can be retried.
local function publish_piece(q, w, attempt)
  local list, call = S.list(w, attempt), redis.call
  local piece = call('LINDEX', list, 0)
  if piece then
    local request = cmsgpack.unpack(piece)
    q.any_backlog = true
    local _, results = G.add_rows(q, request[ADD.rows], request[ADD.quiet])
    local jobs = 0
    for i = 1, #results do
      if type(results[i]) == 'string' or results[i][ADDED_OTHER.outcome] == 'replaced' then jobs = jobs + 1 end
    end
    call('LTRIM', list, 1, -1)
    G.bump(w.manifest, 'jobs', jobs)
    if jobs < #results then G.bump(w.manifest, 'others', #results - jobs) end
    call('HSET', w.manifest, 'at', G.int(G.now(q)))
  end
  if call('EXISTS', list) == 0 then
    call('ZREM', w.won, attempt)
    call('SREM', w.tried, attempt)
  end
end

-- Finish the part of this queue: all its pieces are published.
local function finish_queue(q, w, keep, at_home)
  local queues = S.queues_of(w)
  if #queues > 0 then
    redis.call('HSET', w.manifest, 'own', '1')
    return 'published', queues
  end
  if at_home then S.complete(q, w, keep) else S.finish(q, w, 'done', keep) end
  return 'done', queues
end

G.export('write_publish', {}, function(q, r)
  local w, state = S.read(q, r)
  local queues = {}
  if r.decided == 1 and (state == 'prepared' or state == 'open' or state == 'aborted') then
    if state ~= 'prepared' or S.ballot(w) ~= r.ballot then redis.call('UNLINK', w.won) end
    redis.call('HSET', w.manifest, 'state', 'committed')
    S.count_commit(q)
    state = 'committed'
  end
  local ballot = S.ballot(w)
  local attempt = state == 'committed' and G.member_at(w.won, 0)
  if attempt then publish_piece(q, w, attempt) end
  local counts = G.pick(w.manifest, 'jobs', 'others')
  if state == 'committed' and redis.call('ZCARD', w.won) == 0 and not S.delete_some(w) then
    state, queues = finish_queue(q, w, r.keep, r.decided == 0)
  end
  return {
    state = state, jobs = G.count_of(counts.jobs), others = G.count_of(counts.others), queues = queues,
    ballot = ballot,
  }
end)

G.export('write_finished', { 'allow-oom' }, function(q, r)
  local w = S.write(q, r.write)
  if redis.call('SREM', w.queues, r.queue) == 1 then S.count_queue(w, r.queue, r.jobs, r.others) end
  local h = G.pick(w.manifest, 'state', 'own')
  if h.state == 'committed' and h.own == '1' and redis.call('SCARD', w.queues) == 0 then S.complete(q, w, r.keep) end
  return S.state(q, w, r.query, r.batch)
end)
