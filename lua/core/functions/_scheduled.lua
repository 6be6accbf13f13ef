-- The scheduled set by state. Its bands are priorities (data-model.md section 7): in band 0 all wait for their time; in
-- the others a job whose time has come is ready and stays there until a worker takes it, any other one is delayed.

local BANDS_MAX = 256 -- looks of one call

-- The lowest band from `from` on in which there is anything; nil = none.
G.next_band = function(q, from)
  local low = G.band_start(from)
  local found = redis.call('ZRANGEBYSCORE', q.scheduled, low, G.BELOW_SCHEDULED_END, 'WITHSCORES', 'LIMIT', 0, 1)
  return (G.band_of(found[2]))
end

-- Jobs with a priority of `band` or a later one that are due later, as far as one call looks.
-- -> how many, the band to go on from; 0 = that was the last
G.late_priorities = function(q, now, band)
  local late = 0
  band = G.next_band(q, band)
  for _ = 1, BANDS_MAX do
    if not band then return late, 0 end
    local next_one = G.int((band + 1) * G.BAND)
    late = late + redis.call('ZCOUNT', q.scheduled, '(' .. G.int(band * G.BAND + now), '(' .. next_one)
    band = G.next_band(q, band + 1)
  end
  return late, band or 0
end

-- -> delayed, prioritized, band (as late_priorities answers it)
G.count_scheduled = function(q, now)
  local prioritized = redis.call('ZCOUNT', q.scheduled, G.int(G.BAND), '+inf')
  local delayed = redis.call('ZCARD', q.scheduled) - prioritized
  if prioritized == 0 then return delayed, 0, 0 end
  local late, band = G.late_priorities(q, now, 1)
  return delayed + late, prioritized - late, band
end

-- Bounds of a state in a band: lowest score as a command takes it, and the score that is beyond.
G.band_bounds = function(band, now, ready)
  local low = band * G.BAND
  if ready then return G.int(low), low + now + 1 end
  return band == 0 and '-inf' or G.int(low + now + 1), low + G.BAND
end
