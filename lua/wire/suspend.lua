-- glidemq_suspend        KEYS 1 job, 2 stream, 3 events, 4 suspended
--   ARGV 1 id, 2 entry id, 3 group, 4 now, 5 reason, 6 timeout ms (0 = none), 7 broadcast
--   -> 'ok' | 'error:not_found' | 'error:not_active'
-- glidemq_signal         KEYS 1 job, 2 stream, 3 events, 4 suspended, 5 signals
--   ARGV 1 id, 2 signal name, 3 data text, 4 now   -> 'ok' | 'not_suspended' (nothing is stored)
-- glidemq_sweepSuspended KEYS 1 suspended, 2 events, 3 failed, 4 metrics:failed   ARGV 1 now, 2 P:
--   -> jobs failed; at most 100 a call
local W = G.W

local NEVER = 9999999999999
local SWEEP_MAX = 100

G.export('suspend', { 'allow-oom' }, function(keys, args)
  local id, now, timeout = args[1], W.num(args[4]), W.num(args[6])
  local q = W.job_queue(keys[1], id)
  local h, refusal = W.step_aside(q, id, args[2], args[3], args[7] == '1')
  if not h then return refusal end
  local fields = { 'state', 'suspended', 'suspendedAt', W.text(now) }
  if W.given(args[5]) then
    fields[#fields + 1], fields[#fields + 2] = 'suspendReason', args[5]
  end
  if timeout > 0 then
    fields[#fields + 1], fields[#fields + 2] = 'suspendTimeout', W.text(timeout)
  end
  redis.call('HSET', keys[1], unpack(fields))
  redis.call('ZADD', keys[4], W.score(timeout > 0 and now + timeout or NEVER), id)
  W.pause_in_group(q, id, h, now)
  G.emit(q.events, 'suspended', id)
  return 'ok'
end)

G.export('signal', { 'allow-oom' }, function(keys, args)
  local id = args[1]
  local q = W.job_queue(keys[1], id)
  local h = W.job(q, id)
  if h.state ~= 'suspended' then return 'not_suspended' end
  redis.call('RPUSH', keys[5], '{"name":' .. cjson.encode(args[2]) .. ',"data":' .. cjson.encode(args[3] or '')
    .. ',"receivedAt":' .. W.text(W.num(args[4])) .. '}')
  redis.call('HSET', keys[1], 'signals', '[' .. table.concat(redis.call('LRANGE', keys[5], 0, -1), ',') .. ']')
  redis.call('ZREM', keys[4], id)
  W.push_stream(q, id, h.name)
  G.emit(q.events, 'resumed', id, 'signal', args[2])
  return 'ok'
end)

local function time_out(q, id, h, now)
  local now_text = W.text(now)
  G.end_failed(q, id, now, 'Suspend timeout exceeded', 'failed', h.processedOn)
  redis.call('HSET', q.J .. id, 'processedOn', now_text)
  W.leave_group(q, id, h, now)
end

G.export('sweepSuspended', { 'allow-oom' }, function(keys, args)
  local q, now, failed = G.queue(args[2] .. 'meta'), W.num(args[1]), 0
  local due = redis.call('ZRANGEBYSCORE', keys[1], '-inf', W.score(now), 'LIMIT', 0, SWEEP_MAX)
  for _, id in ipairs(due) do
    local h = W.job(q, id)
    if h.state == 'suspended' then
      time_out(q, id, h, now)
      failed = failed + 1
    end
    redis.call('ZREM', keys[1], id)
  end
  return failed
end)
