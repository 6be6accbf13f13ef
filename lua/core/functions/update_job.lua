-- update_job: write progress, a log line, new data or token usage of a job.
-- KEYS 1 meta   ARGV 1 packed {kind, id, text, fence, processed_on, keep}   -> status (0 ok, 2 gone, 3 stale)
-- kind: 1 progress, 2 log line, 3 data, 4 tokens used. fence 0 = not from a worker: the job only has to exist.
-- keep > 0: number of log lines kept, the newest ones.

local NO_END = {}

local function progress(q, id, text)
  redis.call('HSET', q.J .. id, 'progress', text)
  G.emit(q.events, 'progress', id, 'data', text)
end

local function log(q, id, text, keep)
  local length = redis.call('RPUSH', q.P .. 'log:' .. id, text)
  if length == 1 then G.mark_side_keys(q) end
  if keep > 0 and length > keep then redis.call('LTRIM', q.P .. 'log:' .. id, -keep, -1) end
end

local function data(q, id, text)
  redis.call('HSET', q.J .. id, 'data', text)
end

local function tokens(q, id, text)
  redis.call('HSET', q.J .. id, 'tpmTokens', text)
end

local KINDS = { progress, log, data, tokens }

G.export('update_job', { 'allow-oom' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local h = redis.call('HMGET', q.J .. r[2], 'state', 'fence', 'processedOn')
  if not h[1] then return G.GONE end
  if r[4] > 0 then
    local rejected = G.check_attempt(h, r[4], r[5], NO_END)
    if rejected then return rejected end
  end
  KINDS[r[1]](q, r[2], r[3], r[6])
  return G.OK
end)
