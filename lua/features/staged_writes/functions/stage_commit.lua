-- write_commit: name the winning attempts, verify that all their pieces are stored, and commit.
-- KEYS 1 meta   ARGV 1 packed {write, query, batch, winners, first, total, is home 0|1, keep ms}
-- -> packed {state, attempt}; winner: {attempt, pieces}, `first` its place among `total`. The last chunk commits: at
-- the home 'committed', in other queues 'prepared'. 'lost' = pieces are missing (of which attempt): nothing was committed.
--   For a write that is already committed or done, its state is returned and nothing changes. keep: how long a stream's
--   ledger is kept.
-- write_abort: abort a write. KEYS 1 meta   ARGV 1 packed {write, query, batch, home, keep ms}   -> packed {state,
-- queues}
--   'more' = call again, 'aborted'; 'committed' and 'done' are unchanged. keep 0: not remembered. queues: its other
--   queues.
-- Bound: the winners given; S.LISTS_MAX attempts.

local S = G.staging

local function decide(q, w, r)
  local now = G.int(G.now(q))
  local state = r[7] == 1 and 'committed' or 'prepared'
  for _, key in ipairs({ w.manifest, w.tried, w.won, w.queues }) do redis.call('PEXPIRE', key, S.KEEP) end
  S.register(q, w, now)
  if r[7] == 1 and r[2] ~= '' then S.record_batch(q, r[2], r[3], r[8]) end
  redis.call('HSET', w.manifest, 'state', state, 'at', now)
  return state
end

G.export('write_commit', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local w, winners, first, total = S.write(q, r[1]), r[4], r[5], r[6]
  local state = S.state(q, w, r[2], r[3])
  if state ~= 'open' then return cmsgpack.pack({ state, '' }) end
  if first == 0 then redis.call('UNLINK', w.won) end
  for i = 1, #winners do
    local attempt, list = winners[i][1], S.list(w, winners[i][1])
    if redis.call('LLEN', list) ~= winners[i][2] then return cmsgpack.pack({ 'lost', attempt }) end
    redis.call('PEXPIRE', list, S.KEEP)
    redis.call('ZADD', w.won, first + i, attempt)
  end
  if first + #winners < total then return cmsgpack.pack({ 'open', '' }) end
  if redis.call('ZCARD', w.won) ~= total then return cmsgpack.pack({ 'lost', '' }) end
  return cmsgpack.pack({ decide(q, w, r), '' })
end)

G.export('write_abort', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local w, keep = S.write(q, r[1]), r[5]
  local state = S.state(q, w, r[2], r[3])
  if state == 'committed' or state == 'done' then return cmsgpack.pack({ state, {} }) end
  local queues = S.queues_of(w)
  if state ~= 'absent' or keep > 0 then
    -- From here on no piece is accepted.
    redis.call('HSET', w.manifest, 'state', 'aborted', 'home', r[4], 'query', r[2])
    redis.call('PEXPIRE', w.manifest, math.max(keep, 60000))
  end
  if S.delete_some(w) then return cmsgpack.pack({ 'more', queues }) end
  S.finish(q, w, 'aborted', keep)
  return cmsgpack.pack({ 'aborted', queues })
end)
